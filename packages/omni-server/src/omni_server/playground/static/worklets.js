/**
 * What runs on the audio thread: the microphone's samples brought to the rate of the server, and a
 * queue of samples to play.
 *
 * One file without imports, because not every browser takes imports in worklets.
 */

/** A streaming resampler: windowed sinc, cut off below both rates. The rates must be integers. */
class Resampler {
  static #LOBES = 12;

  constructor(from, to) {
    const divisor = ((a, b) => { while (b) [a, b] = [b, a % b]; return a; })(from, to);
    this.step = from / divisor; // in input samples times `phases`
    this.phases = to / divisor;
    const cutoff = Math.min(1, to / from) * 0.94;
    this.half = Math.ceil(Resampler.#LOBES / cutoff);
    this.kernels = Array.from({ length: this.phases }, (_, phase) =>
      Resampler.#kernel(this.half, phase / this.phases, cutoff));
    this.kept = new Float32Array(this.half - 1);
    this.position = (this.half - 1) * this.phases;
  }

  static #kernel(half, fraction, cutoff) {
    const taps = Float32Array.from({ length: 2 * half }, (_, i) => {
      const t = i - half + 1 - fraction;
      const x = Math.PI * t * cutoff;
      const window = Math.cos((Math.PI * t) / (2 * (half + 1))) ** 2;
      return (x === 0 ? 1 : Math.sin(x) / x) * window;
    });
    const sum = taps.reduce((a, b) => a + b, 0);
    return taps.map((tap) => tap / sum);
  }

  /** The output that these further samples allow. */
  push(samples) {
    const input = new Float32Array(this.kept.length + samples.length);
    input.set(this.kept);
    input.set(samples, this.kept.length);
    const output = [];
    for (;;) {
      const first = Math.floor(this.position / this.phases) - this.half + 1;
      if (first + 2 * this.half > input.length) {
        this.kept = input.slice(first);
        this.position -= first * this.phases;
        return output;
      }
      const kernel = this.kernels[this.position % this.phases];
      let sum = 0;
      for (let i = 0; i < kernel.length; i++) sum += kernel[i] * input[first + i];
      output.push(sum);
      this.position += this.step;
    }
  }
}

/** Posts the microphone as pieces of `options.samples` samples at `options.rate`. */
class MicrophoneProcessor extends AudioWorkletProcessor {
  constructor({ processorOptions: { rate, samples } }) {
    super();
    this.resampler = new Resampler(sampleRate, rate);
    this.piece = [];
    this.samples = samples;
  }

  process([[channel]]) {
    if (!channel) return true; // nothing is connected yet
    this.piece.push(...this.resampler.push(channel));
    while (this.piece.length >= this.samples) {
      const samples = Float32Array.from(this.piece.splice(0, this.samples));
      this.port.postMessage(samples, [samples.buffer]);
    }
    return true;
  }
}

/**
 * Plays {samples}, and posts {played, loudest, round} every `REPORT_EVERY_S` and when all is played.
 *
 * {round} forgets what waits and begins to count from 0; reports name the round they count in.
 */
class SpeakerProcessor extends AudioWorkletProcessor {
  static #REPORT_EVERY_S = 0.04;

  constructor() {
    super();
    this.begin(0);
    this.port.onmessage = ({ data: { samples, round } }) => {
      if (samples) this.queue.push(samples);
      else this.begin(round);
    };
  }

  begin(round) {
    this.round = round;
    this.queue = [];
    this.offset = this.played = this.loudest = this.reportAt = 0;
  }

  process(_, [[channel]]) {
    let filled = 0;
    while (filled < channel.length && this.queue.length) {
      const [samples] = this.queue;
      const piece = samples.subarray(this.offset, this.offset + channel.length - filled);
      channel.set(piece, filled);
      filled += piece.length;
      this.offset += piece.length;
      if (this.offset === samples.length) {
        this.queue.shift();
        this.offset = 0;
      }
    }
    this.played += filled;
    for (let i = 0; i < filled; i++) this.loudest = Math.max(this.loudest, Math.abs(channel[i]));
    if (filled) this.report();
    return true;
  }

  report() {
    if (currentTime < this.reportAt && this.queue.length) return;
    this.reportAt = currentTime + SpeakerProcessor.#REPORT_EVERY_S;
    const { played, loudest, round } = this;
    this.port.postMessage({ played, loudest, round });
    this.loudest = 0;
  }
}

registerProcessor("omni-microphone", MicrophoneProcessor);
registerProcessor("omni-speaker", SpeakerProcessor);
