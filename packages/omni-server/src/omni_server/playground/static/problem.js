/**
 * What went wrong, said to the person, and when trying again can help.
 *
 * Knows the document. ServerErrors say after how many seconds the same may be asked again.
 */

export class Problem {
  #timer = null;

  constructor(box, again, dismiss, focusAfter) {
    this.box = box;
    this.words = box.querySelector("[role=alert]");
    this.again = again;
    this.focusAfter = focusAfter;
    dismiss.addEventListener("click", () => this.#leave());
  }

  /** `again` is called when the person tries again; null if that cannot help. `label` names it. */
  show(error, again = null, label = "Try again") {
    this.clear();
    this.box.hidden = false;
    this.words.textContent = error.message;
    const waitS = error.retryAfterS ?? null;
    this.again.hidden = !again || waitS === null;
    this.again.onclick = () => {
      this.#leave();
      again();
    };
    if (!this.again.hidden) this.#count(Math.ceil(waitS), label);
  }

  clear() {
    clearTimeout(this.#timer);
    this.box.hidden = true;
    this.words.textContent = "";
  }

  #leave() {
    this.clear();
    this.focusAfter.focus();
  }

  #count(seconds, label) {
    this.again.disabled = seconds > 0;
    this.again.textContent = seconds > 0 ? `${label} in ${seconds} s` : label;
    if (seconds > 0) this.#timer = setTimeout(() => this.#count(seconds - 1, label), 1000);
  }
}
