/**
 * Files that go with the next message: a list from which each can be taken again.
 *
 * Knows kinds and sizes. What the server makes of a file, it says itself.
 */

import { element } from "./transcript.js";

const KINDS = ["image/", "audio/", "video/"];
const MOST_MIB = 100;

export class Attachments {
  files = [];

  constructor(list, onRefused, focusAfter) {
    this.list = list;
    this.onRefused = onRefused;
    this.focusAfter = focusAfter;
  }

  add(files) {
    for (const file of files) {
      if (!KINDS.some((kind) => file.type.startsWith(kind))) {
        this.onRefused(`${file.name} is no picture, sound or video.`);
      } else if (file.size > MOST_MIB * 2 ** 20) {
        this.onRefused(`${file.name} is larger than ${MOST_MIB} MiB.`);
      } else {
        this.files.push(file);
      }
    }
    this.#show();
  }

  /** The files, which are attached no longer. */
  take() {
    const taken = this.files;
    this.files = [];
    this.#show();
    return taken;
  }

  #show() {
    this.list.replaceChildren(...this.files.map((file) => {
      const button = element("button",
        { type: "button", className: "plain", ariaLabel: `Remove ${file.name}`, textContent: "\u00d7" });
      button.addEventListener("click", () => {
        this.files = this.files.filter((other) => other !== file);
        this.#show();
        this.focusAfter.focus();
      });
      return element("li", {}, element("span", { textContent: file.name }), button);
    }));
  }
}
