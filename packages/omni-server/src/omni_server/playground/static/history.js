/**
 * What was said, in the order in which it was said: what the model is told of it.
 *
 * Knows OpenAI's messages. Words may become known after their turn: speech is written down later
 * than it is answered, and of a reply counts what was heard.
 */

export class History {
  #turns = [];

  /** A turn in its place. Its `content` may be set later; as long as it is empty, it does not count. */
  add(role, content = "") {
    const turn = { role, content };
    this.#turns.push(turn);
    return turn;
  }

  remove(turn) {
    this.#turns = this.#turns.filter((other) => other !== turn);
  }

  get messages() {
    return this.#turns.filter(({ content }) => content.length);
  }
}
