/**
 * A connection in OpenAI's realtime protocol: JSON events both ways over one WebSocket.
 *
 * Knows how to open and end it, and what its end means. Knows nothing of a conversation.
 */

import { ServerError, address, apiKey, servedModel } from "./api.js";
import { base64 } from "./pcm.js";

/** What the close codes mean to a person. */
const ENDINGS = {
  1001: "The server is going away.",
  1003: "The server refused a message of this page.",
  1006: "The connection was lost.",
  1008: "The server refused the connection.",
  1009: "This page sent more than the server takes at once.",
  1011: "The server met an error of its own.",
  1012: "The server is restarting.",
  1013: "The server is too busy for another conversation.",
};
const WORTH_A_RETRY = [1001, 1006, 1011, 1012, 1013];
const BY_US = 1000;
const RETRY_AFTER_S = 2;

/** What is wrong, of a connection that ended with this code; null if nothing is. */
export function ending(code, reason) {
  if (code === BY_US) return null;
  const words = [ENDINGS[code] ?? `The connection ended with code ${code}.`, reason];
  return new ServerError(words.filter(Boolean).join(" "), {
    retryAfterS: WORTH_A_RETRY.includes(code) ? RETRY_AFTER_S : null,
  });
}

export class Connection {
  #socket;
  #onEnd;
  #opened = false;

  /** `onEvent` gets each event of the server; `onEnd` an error, or null if all is well. */
  constructor(model, onEvent, onEnd) {
    this.#onEnd = onEnd;
    const url = address("v1/realtime");
    url.protocol = url.protocol.replace("http", "ws");
    url.searchParams.set("model", model);
    this.#socket = new WebSocket(url, ["realtime", ...offeredKey()]);
    this.#socket.onopen = () => { this.#opened = true; };
    this.#socket.onmessage = ({ data }) => onEvent(JSON.parse(data));
    this.#socket.onclose = async ({ code, reason }) => {
      onEnd(this.#opened ? ending(code, reason) : await unopened());
    };
  }

  send(event) {
    if (this.#socket.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify(event));
  }

  /** End it from this side, which does not wait for the other. */
  close() {
    this.#socket.onmessage = this.#socket.onclose = null;
    this.#socket.close(BY_US);
    this.#onEnd(null);
  }
}

/**
 * The key as a subprotocol: a browser can send no header with a WebSocket. In base64url, since the
 * constructor throws for a key with `=` or `/`.
 */
function offeredKey() {
  if (!apiKey.get()) return [];
  const coded = base64(new TextEncoder().encode(apiKey.get()));
  return [`omni-api-key-base64url.${coded.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "")}`];
}

/** Browsers do not tell a page why a connection was refused; an HTTP request is told. */
async function unopened() {
  try {
    await servedModel();
  } catch (error) {
    return error;
  }
  return new ServerError("The server refused the voice connection.", { retryAfterS: RETRY_AFTER_S });
}
