/**
 * Both voices as bars that wander from right to left; a still level for who wants less motion.
 *
 * Knows a canvas and the colours of the style sheet.
 */

const BAR_PX = 3;
const PITCH_PX = 5;
const LEAST_PX = 3;

export class Waveform {
  #bars = [];
  #frame = null;

  constructor(canvas) {
    this.canvas = canvas;
    this.reduced = matchMedia("(prefers-reduced-motion: reduce)");
  }

  /** The loudest sample, from 0 to 1, of the next moment of a side: "user" or "assistant". */
  push(side, loudest) {
    this.#bars.push({ side, height: Math.sqrt(Math.min(1, loudest)) });
    this.#frame ??= requestAnimationFrame(() => this.#draw());
  }

  clear() {
    this.#bars = [];
    this.#frame ??= requestAnimationFrame(() => this.#draw());
  }

  #draw() {
    this.#frame = null;
    const { canvas } = this;
    const scale = devicePixelRatio;
    const { clientWidth: width, clientHeight: height } = canvas;
    canvas.width = width * scale;
    canvas.height = height * scale;
    const context = canvas.getContext("2d");
    context.scale(scale, scale);
    const colours = getComputedStyle(canvas);
    const paint = (side) => colours.getPropertyValue(`--${side}-voice`);
    if (this.reduced.matches) {
      this.#level(context, paint, width, height);
      return;
    }
    this.#bars = this.#bars.slice(-Math.ceil(width / PITCH_PX));
    const first = width - this.#bars.length * PITCH_PX;
    this.#bars.forEach((bar, i) => {
      const tall = Math.max(LEAST_PX, bar.height * height);
      context.fillStyle = paint(bar.side);
      context.beginPath();
      context.roundRect(first + i * PITCH_PX, (height - tall) / 2, BAR_PX, tall, BAR_PX / 2);
      context.fill();
    });
  }

  #level(context, paint, width, height) {
    const last = this.#bars.at(-1);
    this.#bars = this.#bars.slice(-1);
    if (!last) return;
    context.fillStyle = paint(last.side);
    context.fillRect(0, height / 2 - LEAST_PX, width * Math.round(last.height * 8) / 8, 2 * LEAST_PX);
  }
}
