/**
 * What the page asks of the server over HTTP, and what the server says when it refuses.
 *
 * Knows URLs, the person's key and OpenAI's error objects. Knows nothing of what is shown.
 */

const KEY = "omni.api-key";
const UNAUTHORIZED = [401, 403];

/** What went wrong, in words for the person. */
export class ServerError extends Error {
  constructor(message, { status = 0, retryAfterS = null } = {}) {
    super(message);
    this.status = status;
    /** Seconds after which the same may be asked again; null if that cannot help. */
    this.retryAfterS = retryAfterS;
  }

  get wantsKey() {
    return UNAUTHORIZED.includes(this.status);
  }
}

/** The person's key; it is gone when the tab is closed. */
export const apiKey = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (key) => sessionStorage.setItem(KEY, key),
};

/** An address of the server, also where a proxy serves it under a prefix. */
export const address = (path) => new URL(path, document.baseURI);

/** The answer of a GET, or of a POST if there is a body. ServerError for anything but success. */
export async function request(path, { body, signal } = {}) {
  const headers = apiKey.get() ? { Authorization: `Bearer ${apiKey.get()}` } : {};
  const posted = body === undefined ? {} : { method: "POST", body: JSON.stringify(body) };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const response = await reached(fetch(address(path), { ...posted, headers, signal }));
  if (!response.ok) throw await refusal(response);
  return response;
}

/** The served model: voices, modalities, sample rate. */
export async function servedModel() {
  const { data } = await (await request("v1/models")).json();
  return data[0];
}

/** The objects of a stream of server-sent events. ServerError if it tells of one, or breaks. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reached(reader.read());
    if (done) break;
    const blocks = (text + value).split("\n\n");
    text = blocks.pop();
    for (const block of blocks) {
      const data = block.replace(/^data: ?/, "");
      if (data === "[DONE]") return;
      const object = JSON.parse(data);
      if (object.error) throw new ServerError(object.error.message);
      yield object;
    }
  }
  throw new ServerError("The reply broke off: the server ended the connection.");
}

async function refusal(response) {
  const { status } = response;
  const after = response.headers.get("Retry-After");
  const retryAfterS = after === null ? null : Number.parseFloat(after) || 1;
  try {
    const { error } = await response.json();
    return new ServerError(error.message, { status, retryAfterS });
  } catch {
    return new ServerError(`The server answered with status ${status}.`, { status, retryAfterS });
  }
}

/** `fetch` and its readers throw a TypeError for every trouble with the network. */
async function reached(promise) {
  try {
    return await promise;
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
    throw new ServerError("The server cannot be reached. Does it still run?", { retryAfterS: 1 });
  }
}
