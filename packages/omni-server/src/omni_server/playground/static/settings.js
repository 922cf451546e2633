/**
 * What the person has set, read from the form.
 *
 * Knows the form's fields. An empty field is left to the checkpoint.
 */

const SAMPLING = ["temperature", "top_p", "max_tokens", "seed"];

/** The voices to choose from, and whether the model speaks at all. */
export function offerVoices(form, model) {
  const speaks = model.output_modalities.includes("audio");
  const names = model.voices.map((voice) =>
    new Option(voice === model.default_voice ? `${voice} (default)` : voice, voice));
  form.elements.voice.replaceChildren(...(names.length ? names : [new Option("none", "")]));
  form.elements.voice.value = model.default_voice ?? "";
  form.elements.voice.disabled = !names.length;
  form.elements.speak.disabled = !speaks;
  form.elements.speak.checked = speaks;
}

/** {voice, speak, instructions, hearVideos, sampling}. */
export function options(form) {
  const { voice, speak, instructions, hearVideos } = form.elements;
  const given = SAMPLING.filter((name) => form.elements[name].value !== "");
  return {
    voice: voice.value,
    speak: speak.checked,
    instructions: instructions.value.trim(),
    hearVideos: hearVideos.checked,
    sampling: Object.fromEntries(given.map((name) => [name, form.elements[name].valueAsNumber])),
  };
}
