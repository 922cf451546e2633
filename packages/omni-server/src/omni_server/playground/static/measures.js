/**
 * How fast a reply came, as the person met it: measured here, the network included.
 *
 * Knows a clock. TTFT and TTFA are the times to the first text and the first audio; RTF is the time
 * until the last audio, for each second of it: below 1, speech is made faster than it is heard.
 */

const EXPLAINED = {
  TTFT: "time to first text",
  TTFA: "time to first audio",
  RTF: "real-time factor: seconds of work for a second of speech",
  Audio: "length of the speech",
  Tokens: "text tokens and codec frames of the reply",
};

/** The times of one reply. */
export class Stopwatch {
  #start = performance.now();
  #firstText = null;
  #firstAudio = null;
  #lastAudio = null;
  #audioS = 0;

  text() {
    this.#firstText ??= performance.now();
  }

  audio(samples, rate) {
    this.#lastAudio = performance.now();
    this.#firstAudio ??= this.#lastAudio;
    this.#audioS += samples / rate;
  }

  /** [name, value, explanation] of all that is known; `tokens` is [text, audio] if it is. */
  measures(tokens = null) {
    const since = (moment) => `${Math.round(moment - this.#start)} ms`;
    const found = [];
    if (this.#firstText) found.push(["TTFT", since(this.#firstText)]);
    if (this.#audioS) {
      const workS = (this.#lastAudio - this.#start) / 1000;
      found.push(["TTFA", since(this.#firstAudio)]);
      found.push(["RTF", (workS / this.#audioS).toFixed(2)]);
      found.push(["Audio", `${this.#audioS.toFixed(1)} s`]);
    }
    if (tokens) found.push(["Tokens", tokens.filter(Boolean).join(" + ") || "0"]);
    return found.map(([name, value]) => [name, value, EXPLAINED[name]]);
  }
}
