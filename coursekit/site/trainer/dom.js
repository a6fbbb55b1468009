// Elements without HTML strings: h("p", {class: "note"}, "text", element, …).

export function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false && value !== undefined) element.setAttribute(key, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

// A text of the bank as paragraphs; `code` is code.
export function prose(text, name = "p") {
  return text.trim().split("\n").map((line) => h(name, {}, ...inline(line)));
}

export function inline(text) {
  return text.split(/(`[^`\n]+`)/).map((piece, i) => (i % 2 ? h("code", {}, piece.slice(1, -1)) : piece));
}

// Replace the page's contents and move the focus to its heading, so that a screen reader starts there.
export function show(...children) {
  const main = document.getElementById("main");
  main.replaceChildren(...children.flat());
  const heading = main.querySelector("h1");
  heading?.setAttribute("tabindex", "-1");
  heading?.focus({ preventScroll: true });
  scrollTo(0, 0);
}
