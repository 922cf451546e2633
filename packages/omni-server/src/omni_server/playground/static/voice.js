/**
 * A spoken conversation: the microphone to the server, its voice to the loudspeaker, both to the
 * transcript; and the person who interrupts.
 *
 * Knows the events of the realtime protocol. The server finds the turns, and ends its own reply when
 * the person speaks; this end falls silent and says how much was heard.
 */

import { ServerError } from "./api.js";
import { heardText } from "./heard.js";
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
const NOT_WRITTEN_DOWN = "(not written down)";

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
  said = ""; // the text so far
  sentMs = 0; // of sound, so far
  place = null; // {item_id, content_index} of the sound
  heardMs = null; // where it was stopped; null if it was not
  done = false;
  whole = false; // all that was to be said has come as sound

  /** `turn` is its place in the transcript, `told` that in the history. */
  constructor(id, watch, turn, told) {
    this.id = id;
    this.watch = watch;
    this.turn = turn;
    this.told = told;
  }

  get silenced() {
    return this.heardMs !== null;
  }

  /** Keep of it what was heard, which is what the server keeps. */
  settle() {
    const wholeMs = this.whole ? Math.floor(this.sentMs) : null;
    const brokeOffMs = this.done && !this.whole ? this.sentMs : null; // no more of it can be heard
    const heardMs = this.heardMs ?? brokeOffMs;
    this.told.content = (heardMs === null ? this.said : heardText(this.said, heardMs, wholeMs)).trim();
    if (heardMs !== null) this.turn.replace(this.told.content);
    if (this.done && !this.said.trim()) this.turn.item.remove();
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
  #transcribes = true;
  #over = false;
  #problem = null; // why this end closes the connection
  #spoken = new Map(); // item id to {turn, told}: its places in the transcript and the history

  /** `told` has state, problem, ended and level, each called as things happen. */
  constructor({ model, history, speaker, transcript, told }) {
    this.#model = model;
    this.#history = history;
    this.#speaker = speaker;
    this.#transcript = transcript;
    this.#told = told;
  }

  /** Begin; must come from a click or a key. What cannot be had ends it. */
  async start(options) {
    this.#options = options;
    this.#told.state("connecting");
    try {
      await this.#speaker.open(RATE_HZ);
      this.#microphone = await this.#listening();
      if (this.#over) this.#microphone.close(); // the person has thought better of it
      else this.#connection = this.#connected();
    } catch (error) {
      this.#ended(error);
    }
  }

  async #listening() {
    const lost = () => this.#fail(new ServerError("The microphone is gone."));
    try {
      return await Microphone.open((samples) => this.#hear(samples), lost);
    } catch (error) {
      throw new ServerError(microphoneRefusal(error));
    }
  }

  #connected() {
    try {
      return new Connection(
        this.#model.id, (event) => this.#on(event), (problem) => this.#ended(problem));
    } catch (error) {
      throw new ServerError(`The voice connection cannot be opened: ${error.message}`);
    }
  }

  /** Whether both sides can speak now. */
  get ready() {
    return this.#begun && !this.#over;
  }

  /** Say something in writing. */
  write(text) {
    this.interrupt();
    this.#transcript.user(text);
    this.#history.add("user", text);
    this.#connection.send(textItem("user", text));
    this.#watch = new Stopwatch();
    this.#connection.send({ type: "response.create" });
    this.#told.state("thinking");
  }

  /** Stop the reply, and tell the server how much of it was heard. */
  interrupt() {
    if (!this.#replying) return;
    const { done, id } = this.#reply;
    if (!done) this.#connection.send({ type: "response.cancel", response_id: id });
    this.#silence();
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
    if (this.#over) return;
    if (this.#replying) this.#silence();
    if (this.#reply && !this.#reply.done) this.#finish("cancelled");
    this.#over = true;
    this.#connection = null;
    this.#microphone?.close();
    this.#microphone = null;
    for (const itemId of [...this.#spoken.keys()]) this.#understood(itemId, null);
    this.#told.ended(this.#problem ?? problem);
  }

  /** Whether there is a reply to be heard. */
  get #replying() {
    const reply = this.#reply;
    return Boolean(reply) && !reply.silenced && (!reply.done || this.#speaker.playing);
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
        return this.#understood(event.item_id, null, event.error.message);
      case "response.created": return this.#begins(event.response.id);
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
    for (const { role, content } of this.#history.messages) {
      if (words(content)) this.#connection.send(textItem(role, words(content)));
    }
    this.#told.state("listening");
  }

  /** Without its settings a conversation does not begin; without what the person said in writing
   * it does. */
  #refused(error) {
    if (error.code === NOTHING_TO_CANCEL) return;
    if (!this.#begun && error.param?.startsWith(TRANSCRIPTION)) {
      this.#transcribes = false;
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
    if (this.#replying) this.#silence();
    this.#told.state("hearing");
  }

  /** Fall silent in the middle of a reply, and say how much of it was heard. */
  #silence() {
    const reply = this.#reply;
    reply.heardMs = this.#speaker.stop();
    if (reply.place) {
      const audio_end_ms = reply.heardMs;
      this.#connection.send({ type: "conversation.item.truncate", ...reply.place, audio_end_ms });
    }
    reply.settle();
    if (reply.done) reply.turn.note(UNUSUAL.cancelled);
  }

  #speechStopped() {
    this.#watch = new Stopwatch();
    this.#told.state("thinking");
  }

  #committed(itemId) {
    const turn = this.#transcript.user("\u2026");
    turn.begin();
    this.#spoken.set(itemId, { turn, told: this.#history.add("user") });
    if (!this.#transcribes) this.#understood(itemId, null);
  }

  #transcribed(itemId, delta) {
    const spoken = this.#spoken.get(itemId);
    if (!spoken) return;
    spoken.told.content += delta;
    spoken.turn.replace(spoken.told.content);
  }

  /** No more is written down of a turn; `transcript` is null if that is not all of it. */
  #understood(itemId, transcript, problem = "") {
    const spoken = this.#spoken.get(itemId);
    if (!spoken) return;
    this.#spoken.delete(itemId);
    const { turn, told } = spoken;
    told.content = transcript ?? told.content;
    turn.replace(told.content || (transcript === null ? NOT_WRITTEN_DOWN : "(no words)"));
    if (problem) turn.note(problem);
    turn.finish();
  }

  #begins(id) {
    const watch = this.#watch ?? new Stopwatch();
    this.#reply = new Reply(id, watch, this.#transcript.assistant(), this.#history.add("assistant"));
    this.#watch = null;
    this.#speaker.stop();
    this.#told.state("thinking");
  }

  #says(text) {
    const reply = this.#reply;
    reply.said += text;
    if (reply.silenced) return;
    reply.watch.text();
    reply.turn.say(text);
  }

  #sounds({ item_id, content_index, delta }) {
    const reply = this.#reply;
    const samples = fromBase64(delta);
    reply.sentMs += (1000 * samples.length) / RATE_HZ;
    if (reply.silenced) return;
    reply.place ??= { item_id, content_index };
    reply.watch.audio(samples.length, RATE_HZ);
    this.#speaker.play(samples);
    this.#told.state("speaking");
  }

  #replied({ status, status_details: details, usage, timeline }) {
    const tokens = usage?.output_token_details;
    this.#finish(status, tokens && [tokens.text_tokens, tokens.audio_tokens], timeline);
    if (status === "failed") this.#refused(details.error);
    if (!this.#speaker.playing && !this.#reply.silenced) this.#told.state("listening");
  }

  /** Nothing more comes of the reply. */
  #finish(status, tokens = null, timeline = []) {
    const reply = this.#reply;
    reply.done = true;
    reply.whole = status === "completed" || status === "incomplete";
    reply.settle();
    if (status in UNUSUAL) reply.turn.note(UNUSUAL[status]);
    reply.turn.finish(reply.watch.measures(tokens), timeline);
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
