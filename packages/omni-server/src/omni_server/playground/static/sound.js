/**
 * The person's microphone and loudspeaker.
 *
 * Knows Web Audio. Knows neither the server nor what is shown.
 */

import { ServerError, address } from "./api.js";

export const RATE_HZ = 24_000;
const PIECE_MS = 40;
const WORKLETS = address("playground/worklets.js");

/** Why the microphone cannot be had here at all; null if it can be asked for. */
export function microphoneProblem() {
  if (!window.isSecureContext) {
    return (
      "Browsers give the microphone only to pages from https:// or from this machine. Open the " +
      "page as http://localhost, for instance through ssh -L 8000:localhost:8000 HOST."
    );
  }
  if (!navigator.mediaDevices?.getUserMedia || !window.AudioWorkletNode) {
    return "This browser cannot record sound for a page.";
  }
  return null;
}

/** What the person can do about a microphone that was refused. */
export function microphoneRefusal(error) {
  switch (error.name) {
    case "NotAllowedError":
      return "The microphone was refused. Allow it for this page in the browser, then talk again.";
    case "NotFoundError":
      return "There is no microphone. Plug one in, then talk again.";
    case "NotReadableError":
      return "The microphone cannot be read; another program may hold it.";
    default:
      return `The microphone cannot be used: ${error.message}`;
  }
}

/**
 * An open microphone: `onPiece` gets Float32Arrays of 40 ms at 24 kHz; `onLost` is called when there
 * will be no more, because it was unplugged or taken back.
 */
export class Microphone {
  static async open(onPiece, onLost) {
    const wanted = { channelCount: 1, echoCancellation: true, noiseSuppression: true };
    const stream = await navigator.mediaDevices.getUserMedia({ audio: wanted });
    stream.getAudioTracks()[0].onended = onLost;
    const context = new AudioContext(); // at its own rate: Firefox joins no others with a stream
    try {
      await context.audioWorklet.addModule(WORKLETS);
      return new Microphone(stream, context, onPiece);
    } catch (error) {
      stream.getTracks().forEach((track) => track.stop());
      await context.close();
      throw error;
    }
  }

  constructor(stream, context, onPiece) {
    this.stream = stream;
    this.context = context;
    const options = { rate: RATE_HZ, samples: (RATE_HZ * PIECE_MS) / 1000 };
    this.node = new AudioWorkletNode(context, "omni-microphone", {
      numberOfOutputs: 1,
      processorOptions: options,
    });
    this.node.port.onmessage = ({ data }) => onPiece(data);
    // The node stays silent; connected to the output, it is run in every browser.
    context.createMediaStreamSource(stream).connect(this.node).connect(context.destination);
  }

  get muted() {
    return !this.stream.getAudioTracks()[0].enabled;
  }

  set muted(muted) {
    this.stream.getAudioTracks()[0].enabled = !muted;
  }

  close() {
    this.node.port.onmessage = null;
    this.stream.getTracks().forEach((track) => track.stop());
    return this.context.close();
  }
}

/** The loudspeaker: plays samples as they come, and knows how much of them was heard. */
export class Speaker {
  #context = null;
  #node = null;
  #rate = 0;
  #round = 0;
  #given = 0;
  #played = 0;
  #loudest = 0;

  constructor(onPlayed) {
    /** Called when all there is has been played. */
    this.onPlayed = onPlayed;
  }

  /**
   * Be silent, and ready for samples at a rate; must come from a click or a key, or browsers play
   * nothing. ServerError if there can be no sound.
   */
  async open(rate) {
    this.stop();
    if (this.#rate === rate) {
      this.#context.resume();
      return;
    }
    this.#rate = 0; // until all is there: what fails is tried again
    this.#node = null;
    try {
      await this.#context?.close();
      this.#context = null;
      this.#context = new AudioContext({ sampleRate: rate });
      this.#context.resume(); // without an end where there is no loudspeaker: nobody waits for it
      await this.#context.audioWorklet.addModule(WORKLETS);
    } catch (error) {
      throw new ServerError(`Sound cannot be played: ${error.message}`, { retryAfterS: 0 });
    }
    this.#node = new AudioWorkletNode(this.#context, "omni-speaker", { numberOfInputs: 0 });
    this.#node.connect(this.#context.destination);
    this.#node.port.onmessage = ({ data }) => this.#report(data);
    this.#rate = rate;
    this.stop(); // so that both ends count the same round
  }

  play(samples) {
    this.#given += samples.length;
    this.#node.port.postMessage({ samples }, [samples.buffer]);
  }

  /** Be silent at once, and begin to count from 0. Returns the milliseconds that were heard. */
  stop() {
    const heardMs = this.heardMs;
    this.#round += 1;
    this.#node?.port.postMessage({ round: this.#round });
    this.#given = this.#played = 0;
    return heardMs;
  }

  get playing() {
    return this.#played < this.#given;
  }

  /** Of what was played since `stop`, without what is still on its way to the ear. */
  get heardMs() {
    if (!this.#played) return 0;
    const onItsWayS = this.playing ? this.#context.outputLatency || 0 : 0;
    return Math.max(0, Math.floor((this.#played / this.#rate - onItsWayS) * 1000));
  }

  /** The loudest sample played since this was asked last. */
  takeLevel() {
    const loudest = this.#loudest;
    this.#loudest = 0;
    return loudest;
  }

  #report({ played, loudest, round }) {
    if (round !== this.#round) return;
    this.#played = played;
    this.#loudest = Math.max(this.#loudest, loudest);
    if (!this.playing) this.onPlayed();
  }
}
