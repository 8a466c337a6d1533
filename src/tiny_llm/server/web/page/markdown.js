// Markdown to sanitized HTML: model output is untrusted.

import { marked } from "./vendor/marked.js";
import DOMPurify from "./vendor/purify.js";

// No images or forms: both would send requests to this or another host.
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
