/**
 * The dialog that asks the person for a key, and what is left to do for who has none.
 *
 * Knows the document and where the key is kept.
 */

import { ServerError, apiKey } from "./api.js";

const USE = "use";

export class KeyDialog {
  constructor(dialog, problem) {
    this.dialog = dialog;
    this.field = dialog.querySelector("input");
    this.words = dialog.querySelector("[role=alert]");
    this.problem = problem;
    dialog.addEventListener("close", () => this.#closed());
  }

  get open() {
    return this.dialog.open;
  }

  /** Ask because of `error`; `again` is called with the key there, and null if that cannot help. */
  ask(error, again) {
    this.again = () => again?.();
    this.words.textContent = apiKey.get() ? error.message : "";
    this.dialog.returnValue = ""; // what Escape leaves
    if (!this.open) this.dialog.showModal();
  }

  #closed() {
    if (this.dialog.returnValue === USE) {
      apiKey.set(this.field.value.trim());
      this.again();
      return;
    }
    const missing = new ServerError("Without an API key, this server answers nothing.", { retryAfterS: 0 });
    this.problem.show(missing, () => this.ask(missing, this.again), "Enter a key");
    this.problem.again.focus();
  }
}
