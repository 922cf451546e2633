/**
 * The conversation as it is shown: what each side said, how long it took, what each stage did.
 *
 * Knows the document. Puts the words of the model and of the person in as text, never as markup.
 */

const NEAR_THE_END_PX = 120;

/** An element with text or children. */
export function element(name, { className = "", ...properties } = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

/** All turns, and whether the newest is kept in sight. */
export class Transcript {
  constructor(list, scroller, welcome) {
    this.list = list;
    this.scroller = scroller;
    this.welcome = welcome;
  }

  clear() {
    for (const { src } of this.list.querySelectorAll(".media > *")) URL.revokeObjectURL(src);
    this.list.replaceChildren();
    this.welcome.hidden = false;
  }

  /** A turn of the person, with what was attached. */
  user(text, files = []) {
    const turn = this.#turn("user", "You");
    turn.say(text);
    if (files.length) turn.body.prepend(element("div", { className: "media" }, ...files.map(preview)));
    this.#follow(true);
    return turn;
  }

  /** A turn of the model, which is still being said. */
  assistant() {
    const turn = this.#turn("assistant", "Omni");
    turn.begin();
    this.#follow(true);
    return turn;
  }

  #turn(role, name) {
    this.welcome.hidden = true;
    const turn = new Turn(role, name, () => this.#follow(false));
    this.list.append(turn.item);
    return turn;
  }

  #follow(always) {
    const { scrollHeight, scrollTop, clientHeight } = this.scroller;
    if (always || scrollHeight - scrollTop - clientHeight < NEAR_THE_END_PX) {
      this.scroller.scrollTop = scrollHeight;
    }
  }
}

class Turn {
  constructor(role, name, onGrown) {
    this.words = element("p", { className: "words" });
    this.body = element("div", { className: "body" }, this.words);
    this.item = element("article", { className: role },
      element("h2", { className: "unseen", textContent: name }), this.body);
    this.onGrown = onGrown;
  }

  get text() {
    return this.words.textContent;
  }

  say(text) {
    this.words.append(this.text ? text : text.trimStart());
    this.onGrown();
  }

  /** Say this instead of all so far. */
  replace(text) {
    this.words.replaceChildren(text);
    this.onGrown();
  }

  /** What the model thinks before it answers. */
  think(text) {
    if (!this.thoughts) {
      this.thoughts = element("p", { className: "words quiet" });
      this.body.prepend(
        element("details", {}, element("summary", { textContent: "Thoughts" }), this.thoughts));
    }
    this.thoughts.append(text);
    this.onGrown();
  }

  /** More will be said; read aloud once it is whole. */
  begin() {
    this.item.setAttribute("aria-busy", "true");
  }

  /** How the turn ended, if not as usual. */
  note(text) {
    this.body.append(element("p", { className: "note", textContent: text }));
    this.onGrown();
  }

  /** Nothing more comes. `measures` are [name, value, explanation]; `spans` what each stage did. */
  finish(measures = [], spans = []) {
    this.item.removeAttribute("aria-busy");
    const quietly = { ariaLive: "off" };
    if (measures.length) this.body.append(element("dl", quietly, ...measures.map(measure)));
    if (spans.length) this.body.append(timeline(spans));
    this.onGrown();
  }
}

function measure([name, value, explanation]) {
  return element("div", { title: explanation },
    element("dt", { textContent: name }), element("dd", { textContent: value }));
}

function preview(file) {
  const src = URL.createObjectURL(file);
  if (file.type.startsWith("image/")) return element("img", { src, alt: file.name });
  const player = file.type.startsWith("video/") ? "video" : "audio";
  return element(player, { src, controls: true, title: file.name });
}

/** A bar for each stage, from its start to its end, paler until its first output. */
function timeline(spans) {
  const end = Math.max(...spans.map((span) => span.end_s), 0.001);
  const percent = (seconds) => `${(100 * seconds) / end}%`;
  const rows = spans.map(({ stage, start_s: start, first_output_s: first, end_s: stop }) => {
    const bar = element("span", { className: "bar" });
    const output = element("span", { className: "output" });
    bar.style.left = percent(start);
    bar.style.width = percent(stop - start);
    output.style.width = first === null ? "0" : `${(100 * (stop - first)) / (stop - start || 1)}%`;
    bar.append(output);
    const told = first === null ? "" : `, first ${first.toFixed(2)}`;
    return element("li", {},
      element("span", { className: "stage", textContent: stage }),
      element("span", { className: "track" }, bar),
      element("span", { className: "times",
        textContent: `${start.toFixed(2)} to ${stop.toFixed(2)} s${told}` }));
  });
  const shown = element("details", { className: "timeline", ariaLive: "off" },
    element("summary", { textContent: `Stages, ${end.toFixed(2)} s` }),
    element("ol", {}, ...rows));
  shown.addEventListener("toggle", () => shown.scrollIntoView({ block: "nearest" }));
  return shown;
}
