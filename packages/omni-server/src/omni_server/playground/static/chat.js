/**
 * A typed turn: the body of a chat completion, and its stream as what a person sees and hears.
 *
 * Knows OpenAI's chat format and Omni's extensions of it. Knows nothing of what is shown.
 */

import { ServerError, events, request } from "./api.js";
import { fromBase64 } from "./pcm.js";

/** The body that asks for the next turn. `options` are the form's: see `settings.js`. */
export function chatBody(messages, options) {
  const system = options.instructions
    ? [{ role: "system", content: options.instructions }]
    : [];
  const spoken = options.speak
    ? {
        modalities: ["text", "audio"],
        audio: { format: "pcm16", ...(options.voice && { voice: options.voice }) },
      }
    : { modalities: ["text"] };
  return {
    messages: [...system, ...messages],
    ...spoken,
    ...options.sampling,
    ...(options.hearVideos && { use_audio_in_video: true }),
    stream: true,
    stream_options: { include_usage: true },
    include_timeline: true,
  };
}

/**
 * The reply in pieces: {text}, {reasoning}, {samples, rate}, {finishReason, timeline} and {usage}.
 */
export async function* reply(body, signal) {
  let rate = null;
  for await (const chunk of events(await request("v1/chat/completions", { body, signal }))) {
    if (chunk.usage) yield { usage: chunk.usage };
    const [choice] = chunk.choices;
    if (!choice) continue;
    const { delta } = choice;
    rate = delta.audio?.sample_rate ?? rate;
    const text = delta.content ?? delta.audio?.transcript;
    if (delta.reasoning_content) yield { reasoning: delta.reasoning_content };
    if (text) yield { text };
    if (delta.audio?.data) yield { samples: fromBase64(delta.audio.data), rate };
    if (choice.finish_reason) {
      yield { finishReason: choice.finish_reason, timeline: chunk.timeline ?? [] };
    }
  }
}

/** What a person has attached, as parts of a message. */
export async function partOf(file) {
  const url = await dataUrl(file);
  if (file.type.startsWith("image/")) return { type: "image_url", image_url: { url } };
  if (file.type.startsWith("video/")) return { type: "video_url", video_url: { url } };
  return { type: "audio_url", audio_url: { url } };
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new ServerError(`${file.name} cannot be read.`));
    reader.readAsDataURL(file);
  });
}
