// Sets the formulas. They arrive as \(…\) and \[…\] in elements of the class arithmatex.
document.querySelectorAll(".arithmatex").forEach((element) => {
  renderMathInElement(element, {
    delimiters: [
      { left: "\\(", right: "\\)", display: false },
      { left: "\\[", right: "\\]", display: true },
    ],
  });
});
