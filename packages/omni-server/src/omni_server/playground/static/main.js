/**
 * The page: its buttons and fields, and which of them make sense when.
 *
 * Knows the document and who does what. Everything else is in the other modules.
 */

import { ServerError, servedModel } from "./api.js";
import { Attachments } from "./attachments.js";
import { History } from "./history.js";
import { KeyDialog } from "./key.js";
import { Problem } from "./problem.js";
import { offerVoices, options } from "./settings.js";
import { Speaker, microphoneProblem } from "./sound.js";
import { Transcript } from "./transcript.js";
import { ask } from "./typed.js";
import { STATES, VoiceConversation } from "./voice.js";
import { Waveform } from "./waveform.js";

const byId = (id) => document.getElementById(id);
const TALLEST_TEXT_PX = 160;

const form = byId("options");
const text = byId("text");
const transcript = new Transcript(byId("transcript"), byId("conversation"), byId("welcome"));
const waveform = new Waveform(byId("waveform"));
const problem = new Problem(byId("problem"), byId("again"), byId("dismiss"), text);
const keyDialog = new KeyDialog(byId("key-dialog"), problem);
const attachments = new Attachments(
  byId("attachments"), (message) => problem.show(new Error(message)), text);
const speaker = new Speaker(() => {
  voice?.played();
  show();
});

let model = null;
let history = new History();
let replying = null; // the AbortController of a written turn
let voice = null; // the VoiceConversation

/** Buttons as the moment asks. */
function show() {
  const busy = Boolean(replying);
  const focused = document.activeElement; // asked later, a browser has forgotten it
  byId("stop").hidden = Boolean(voice) || !(busy || speaker.playing);
  byId("send").hidden = busy;
  byId("send").disabled = !model;
  byId("dismiss").hidden = !model; // there is nothing else to do
  byId("voice-panel").hidden = !voice;
  byId("talk").hidden = Boolean(voice);
  byId("talk").disabled = !model || busy || Boolean(noVoice());
  byId("attach").disabled = Boolean(voice);
  byId("new").disabled = busy || Boolean(voice);
  if (focused.closest("[hidden]")) text.focus();
}

/** Why no one can talk here; "" if they can. */
function noVoice() {
  if (!model) return "";
  if (!model.output_modalities.includes("audio")) {
    return "Talking is off: this server runs without speech, and replies in text only.";
  }
  if (!model.input_modalities.includes("audio")) {
    return "Talking is off: this model does not hear.";
  }
  const missing = microphoneProblem();
  return missing ? `Talking is off. ${missing}` : "";
}

/** Ask who is served; asks the person for a key first if the server wants one. */
async function meet() {
  try {
    model = await servedModel();
  } catch (error) {
    error.retryAfterS ??= 0;
    fail(error, meet);
    return;
  }
  problem.clear();
  byId("model").textContent = model.id;
  offerVoices(form, model);
  byId("no-voice").textContent = noVoice();
  byId("no-voice").hidden = !noVoice();
  show();
}

/** Tell the person what went wrong; `again` is what to do when they try again. */
function fail(error, again) {
  if (error.wantsKey) {
    keyDialog.ask(error, again);
    return;
  }
  if (!(error instanceof ServerError)) console.error(error);
  problem.show(error, again);
}

/** The settings; null, with the panel open on the wrong one, if one is wrong. */
function chosen() {
  if (!form.checkValidity()) {
    openSettings(true);
    form.reportValidity();
    return null;
  }
  return options(form);
}

async function send(words, files) {
  const set = chosen();
  if (!set) return;
  problem.clear();
  const asked = transcript.user(words, files);
  replying = new AbortController();
  const { signal } = replying;
  show();
  try {
    if (set.speak) await speaker.open(model.sample_rate);
    else speaker.stop();
    await ask({ text: words, files, options: set, history, transcript, speaker, signal });
  } catch (error) {
    asked.note("Not answered");
    fail(error, () => {
      asked.item.remove();
      return send(words, files);
    });
  } finally {
    replying = null;
    show();
  }
}

function submit(event) {
  event.preventDefault();
  const words = text.value.trim();
  if (!model || replying || (voice && !voice.ready)) return;
  if (!(words || attachments.files.length)) return;
  if (voice) {
    if (words) voice.write(words);
  } else {
    send(words, attachments.take());
  }
  text.value = "";
  grow();
}

/** Stop the reply, in whatever way it comes. */
function stop() {
  if (voice) {
    voice.interrupt();
    return;
  }
  replying?.abort();
  speaker.stop();
  show();
}

/** What Escape ends: the settings where they hide the conversation, or else the reply. */
function escape() {
  if (byId("composer").offsetParent !== null) {
    stop();
    return;
  }
  openSettings(false);
  byId("settings-button").focus();
}

async function talk() {
  const set = chosen();
  if (!set) return;
  problem.clear();
  waveform.clear();
  const told = {
    state: (name) => tellState(STATES[name]),
    problem: (error) => fail(error, null),
    level: (side, loudest) => waveform.push(side, loudest),
    ended: hungUp,
  };
  voice = new VoiceConversation({ model, history, speaker, transcript, told });
  mute(false);
  show();
  byId("hang-up").focus();
  await voice.start(set);
}

/** Said once to who listens, not at every piece of sound. */
function tellState(words) {
  if (byId("voice-state").textContent !== words) byId("voice-state").textContent = words;
}

function hungUp(error) {
  const focused = byId("voice-panel").contains(document.activeElement);
  voice = null;
  show();
  if (focused) byId("talk").focus();
  if (error) fail(error, talk);
}

function mute(muted) {
  byId("mute").textContent = muted ? "Unmute" : "Mute";
}

function openSettings(open) {
  byId("settings-button").setAttribute("aria-expanded", String(open));
  document.body.classList.toggle("with-settings", open);
}

/** As tall as what is written. */
function grow() {
  text.style.height = "auto";
  text.style.height = `${Math.min(text.scrollHeight, TALLEST_TEXT_PX)}px`;
}

function renew() {
  speaker.stop();
  history = new History();
  transcript.clear();
  problem.clear();
  show();
  text.focus();
}

byId("composer").addEventListener("submit", submit);
text.addEventListener("input", grow);
text.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !event.isComposing && !keyDialog.open) escape();
});
byId("stop").addEventListener("click", stop);
byId("no-key").addEventListener("click", () => byId("key-dialog").close());
byId("interrupt").addEventListener("click", stop);
byId("talk").addEventListener("click", talk);
byId("hang-up").addEventListener("click", () => voice.stop());
byId("mute").addEventListener("click", () => {
  if (voice.ready) mute(voice.toggleMute());
});
byId("new").addEventListener("click", renew);
byId("attach").addEventListener("click", () => byId("files").click());
byId("files").addEventListener("change", ({ target }) => {
  attachments.add(target.files);
  target.value = "";
  text.focus();
});
byId("settings-button").addEventListener("click", () => {
  openSettings(!document.body.classList.contains("with-settings"));
});
form.addEventListener("submit", (event) => event.preventDefault());

openSettings(matchMedia("(min-width: 60rem)").matches);
show();
meet();
