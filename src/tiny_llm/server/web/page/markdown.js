// An answer's Markdown as HTML that is safe to show: a model may write anything.

import { marked } from "./vendor/marked.js";
import DOMPurify from "./vendor/purify.js";

// Pictures and forms are left out: showing one would ask another host, or this one.
const ALLOWED = {
  ALLOWED_TAGS: [
    "a", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li",
    "ol", "p", "pre", "strong", "sub", "sup", "table", "tbody", "td", "th", "thead", "tr", "ul",
  ],
  ALLOWED_ATTR: ["href", "align", "start"],
  ALLOWED_URI_REGEXP: /^(https?|mailto):/i,
};

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName === "A") {
    node.setAttribute("target", "_blank");
    node.setAttribute("rel", "noopener noreferrer");
  }
});

export function toHtml(text) {
  return DOMPurify.sanitize(marked.parse(text, { gfm: true, breaks: true }), ALLOWED);
}
