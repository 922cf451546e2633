/**
 * Written turns: what the person writes and attaches, and the reply as it streams in.
 *
 * Knows the history of the conversation. What fails is taken out of it again.
 */

import { chatBody, partOf, reply } from "./chat.js";
import { Stopwatch } from "./measures.js";

const UNUSUAL = { length: "Cut short: max tokens reached." };

/**
 * Ask for a reply and show it. Returns nothing when it is all there or `signal` stopped it; throws
 * what went wrong, with the history as it was.
 */
export async function ask({ text, files, options, history, transcript, speaker, signal }) {
  const parts = await Promise.all(files.map(partOf));
  const content = parts.length ? [...parts, ...(text ? [{ type: "text", text }] : [])] : text;
  const shown = transcript.assistant();
  const watch = new Stopwatch();
  let usage = null;
  let spans = [];
  const asked = history.add("user", content);
  try {
    for await (const piece of reply(chatBody(history.messages, options), signal)) {
      if (piece.reasoning) shown.think(piece.reasoning);
      if (piece.text) {
        watch.text();
        shown.say(piece.text);
      }
      if (piece.samples) {
        watch.audio(piece.samples.length, piece.rate);
        speaker.play(piece.samples);
      }
      if (piece.finishReason in UNUSUAL) shown.note(UNUSUAL[piece.finishReason]);
      spans = piece.timeline ?? spans;
      usage = piece.usage ?? usage;
    }
  } catch (error) {
    if (!signal.aborted) {
      history.remove(asked);
      shown.item.remove();
      throw error;
    }
    shown.note("Stopped");
  }
  history.add("assistant", shown.text);
  const details = usage?.completion_tokens_details;
  shown.finish(watch.measures(details && [details.text_tokens, details.audio_tokens]), spans);
}
