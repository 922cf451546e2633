/**
 * A spoken conversation: the microphone to the server, its voice to the loudspeaker, both to the
 * transcript; and the person who interrupts.
 *
 * Knows the events of the realtime protocol. The server finds the turns, and ends its own reply when
 * the person speaks; this end falls silent and says how much was heard.
 */

import { ServerError } from "./api.js";
import { Stopwatch } from "./measures.js";
import { fromBase64, peak, toBase64 } from "./pcm.js";
import { Connection } from "./realtime.js";
import { Microphone, RATE_HZ, microphoneRefusal } from "./sound.js";

const PCM = { type: "audio/pcm", rate: RATE_HZ };
const NOTHING_TO_CANCEL = "response_cancel_not_active";
const TRANSCRIPTION = "session.audio.input.transcription";
const UNUSUAL = {
  cancelled: "Interrupted",
  incomplete: "Cut short: max tokens reached.",
  failed: "Failed",
};

/** What the conversation is doing, in words for the person. */
export const STATES = {
  connecting: "Connecting",
  listening: "Listening",
  hearing: "Hearing you",
  thinking: "Thinking",
  speaking: "Speaking; talk to interrupt",
};

/** Times, transcript and sound of one reply. */
class Reply {
  constructor(id, watch) {
    this.id = id;
    this.watch = watch;
    this.turn = null;
    this.heard = null; // {item_id, content_index} of the sound
    this.silenced = false;
    this.done = false;
  }
}

export class VoiceConversation {
  #model;
  #history;
  #speaker;
  #transcript;
  #told;
  #options;
  #connection = null;
  #microphone = null;
  #reply = null;
  #watch = null;
  #begun = false;
  #over = false;
  #problem = null; // why this end closes the connection
  #spoken = new Map(); // item id to its turn in the transcript

  /** `told` has state, problem, ended and level, each called as things happen. */
  constructor({ model, history, speaker, transcript, told }) {
    this.#model = model;
    this.#history = history;
    this.#speaker = speaker;
    this.#transcript = transcript;
    this.#told = told;
  }

  /** Begin; must come from a click or a key. ServerError if the microphone is refused. */
  async start(options) {
    this.#options = options;
    this.#told.state("connecting");
    await this.#speaker.open(RATE_HZ);
    this.#speaker.stop();
    const lost = () => this.#fail(new ServerError("The microphone is gone."));
    try {
      this.#microphone = await Microphone.open((samples) => this.#hear(samples), lost);
    } catch (error) {
      if (this.#over) return;
      throw new ServerError(microphoneRefusal(error));
    }
    if (this.#over) { // the person has thought better of it
      this.#microphone.close();
      return;
    }
    this.#connection = new Connection(
      this.#model.id, (event) => this.#on(event), (problem) => this.#ended(problem));
  }

  /** Whether both sides can speak now. */
  get ready() {
    return this.#begun && !this.#over;
  }

  /** Say something in writing. */
  write(text) {
    this.interrupt();
    this.#transcript.user(text);
    this.#history.push({ role: "user", content: text });
    this.#connection.send(textItem("user", text));
    this.#watch = new Stopwatch();
    this.#connection.send({ type: "response.create" });
    this.#told.state("thinking");
  }

  /** Stop the reply, and tell the server how much of it was heard. */
  interrupt() {
    const reply = this.#reply;
    if (!reply || reply.silenced || (reply.done && !this.#speaker.playing)) return;
    if (!reply.done) this.#connection.send({ type: "response.cancel", response_id: reply.id });
    this.#silence(reply);
    this.#told.state("listening");
  }

  /** Let the microphone be heard again, or not; returns whether it is mute now. */
  toggleMute() {
    this.#microphone.muted = !this.#microphone.muted;
    return this.#microphone.muted;
  }

  /** End the conversation. */
  stop() {
    if (this.#connection) this.#connection.close();
    else this.#ended(null);
  }

  #hear(samples) {
    if (this.#speaker.playing) this.#told.level("assistant", this.#speaker.takeLevel());
    else this.#told.level("user", peak(samples));
    if (!this.ready) return;
    this.#connection.send({ type: "input_audio_buffer.append", audio: toBase64(samples) });
  }

  #ended(problem) {
    this.#over = true;
    this.#connection = null;
    this.#microphone?.close();
    this.#microphone = null;
    this.#speaker.stop();
    if (this.#reply && !this.#reply.done) this.#reply.turn?.finish();
    this.#told.ended(this.#problem ?? problem);
  }

  /** One event of the server; those that are not here change nothing for a person. */
  #on(event) {
    switch (event.type) {
      case "session.created": return this.#configure({ model: this.#model.id });
      case "session.updated": return this.#begin();
      case "error": return this.#refused(event.error);
      case "input_audio_buffer.speech_started": return this.#speechStarted();
      case "input_audio_buffer.speech_stopped": return this.#speechStopped();
      case "input_audio_buffer.committed": return this.#committed(event.item_id);
      case "conversation.item.input_audio_transcription.delta":
        return this.#transcribed(event.item_id, event.delta);
      case "conversation.item.input_audio_transcription.completed":
        return this.#understood(event.item_id, event.transcript);
      case "conversation.item.input_audio_transcription.failed":
        return this.#spoken.get(event.item_id)?.note(event.error.message);
      case "response.created": return this.#replying(event.response.id);
      case "response.output_text.delta":
      case "response.output_audio_transcript.delta": return this.#says(event.delta);
      case "response.output_audio.delta": return this.#sounds(event);
      case "response.done": return this.#replied(event.response);
    }
  }

  #configure(transcription) {
    const { instructions, voice, sampling } = this.#options;
    const { max_tokens: limit, temperature } = sampling;
    this.#connection.send({
      type: "session.update",
      session: {
        type: "realtime",
        output_modalities: ["audio"],
        instructions,
        ...(limit && { max_output_tokens: limit }),
        ...(temperature !== undefined && { temperature }),
        include_timeline: true,
        audio: {
          input: {
            format: PCM,
            transcription,
            turn_detection: { type: "server_vad" },
          },
          output: { format: PCM, ...(voice && { voice }) },
        },
      },
    });
  }

  #begin() {
    this.#begun = true;
    for (const { role, content } of this.#history) {
      if (words(content)) this.#connection.send(textItem(role, words(content)));
    }
    this.#told.state("listening");
  }

  /** Without its settings a conversation does not begin; without what the person said in writing
   * it does. */
  #refused(error) {
    if (error.code === NOTHING_TO_CANCEL) return;
    if (!this.#begun && error.param?.startsWith(TRANSCRIPTION)) {
      this.#configure(null);
      return;
    }
    if (this.#begun) this.#told.problem(new ServerError(error.message));
    else this.#fail(new ServerError(error.message));
  }

  #fail(problem) {
    this.#problem = problem;
    this.stop();
  }

  #speechStarted() {
    const reply = this.#reply;
    if (reply && !reply.silenced && (!reply.done || this.#speaker.playing)) this.#silence(reply);
    this.#told.state("hearing");
  }

  #silence(reply) {
    reply.silenced = true;
    const heardMs = this.#speaker.stop();
    if (reply.heard) {
      this.#connection.send({ type: "conversation.item.truncate", ...reply.heard, audio_end_ms: heardMs });
    }
    if (reply.done) reply.turn?.note(UNUSUAL.cancelled);
  }

  #speechStopped() {
    this.#watch = new Stopwatch();
    this.#told.state("thinking");
  }

  #committed(itemId) {
    const turn = this.#transcript.user("\u2026");
    turn.pending = true;
    this.#spoken.set(itemId, turn);
  }

  #transcribed(itemId, delta) {
    const turn = this.#spoken.get(itemId);
    if (!turn) return;
    if (turn.pending) turn.replace(delta);
    else turn.say(delta);
    turn.pending = false;
  }

  #understood(itemId, transcript) {
    this.#spoken.get(itemId)?.replace(transcript || "(no words)");
    if (transcript) this.#history.push({ role: "user", content: transcript });
  }

  #replying(id) {
    this.#reply = new Reply(id, this.#watch ?? new Stopwatch());
    this.#reply.turn = this.#transcript.assistant();
    this.#watch = null;
    this.#speaker.stop();
    this.#told.state("thinking");
  }

  #says(text) {
    if (this.#reply.silenced) return;
    this.#reply.watch.text();
    this.#reply.turn.say(text);
  }

  #sounds({ item_id, content_index, delta }) {
    const reply = this.#reply;
    if (reply.silenced) return;
    const samples = fromBase64(delta);
    reply.heard ??= { item_id, content_index };
    reply.watch.audio(samples.length, RATE_HZ);
    this.#speaker.play(samples);
    this.#told.state("speaking");
  }

  #replied({ status, status_details: details, usage, timeline }) {
    const reply = this.#reply;
    const { turn } = reply;
    const tokens = usage?.output_token_details;
    reply.done = true;
    if (status in UNUSUAL) turn.note(UNUSUAL[status]);
    turn.finish(reply.watch.measures(tokens && [tokens.text_tokens, tokens.audio_tokens]), timeline);
    if (turn.text) this.#history.push({ role: "assistant", content: turn.text });
    else if (status === "cancelled") turn.item.remove();
    if (status === "failed") this.#refused(details.error);
    if (!this.#speaker.playing && !reply.silenced) this.#told.state("listening");
  }

  /** The loudspeaker has played all it had. */
  played() {
    if (this.#reply?.done && !this.#reply.silenced) this.#told.state("listening");
  }
}

/** A written turn of either side. */
function textItem(role, text) {
  const type = role === "user" ? "input_text" : "output_text";
  const content = [{ type, text }];
  return { type: "conversation.item.create", item: { type: "message", role, content } };
}

/** The text of a message; pictures and sounds stay where they were. */
const words = (content) =>
  typeof content === "string"
    ? content
    : content.filter((part) => part.type === "text").map((part) => part.text).join(" ");
