/**
 * Sound as it travels: 16-bit little-endian samples in base64, and as Web Audio wants it.
 *
 * Pure functions.
 */

const BYTES_AT_ONCE = 0x2000; // more arguments than this overflow the stack of String.fromCharCode

/** Base64 to samples from -1 to 1. */
export function fromBase64(text) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  const samples = new Float32Array(bytes.length >> 1);
  for (let i = 0; i < samples.length; i++) samples[i] = view.getInt16(2 * i, true) / 32768;
  return samples;
}

/** Samples from -1 to 1 to base64. */
export function toBase64(samples) {
  const bytes = new Uint8Array(2 * samples.length);
  const view = new DataView(bytes.buffer);
  for (let i = 0; i < samples.length; i++) {
    const clipped = Math.max(-1, Math.min(1, samples[i]));
    view.setInt16(2 * i, Math.round(clipped * 32767), true);
  }
  return base64(bytes);
}

/** Bytes to base64. */
export function base64(bytes) {
  let text = "";
  for (let i = 0; i < bytes.length; i += BYTES_AT_ONCE) {
    text += String.fromCharCode(...bytes.subarray(i, i + BYTES_AT_ONCE));
  }
  return btoa(text);
}

/** The largest magnitude of some samples: how tall they are drawn. */
export const peak = (samples) => samples.reduce((most, x) => Math.max(most, Math.abs(x)), 0);
