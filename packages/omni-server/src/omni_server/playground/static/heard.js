/**
 * How much of a spoken reply's text was heard: the rule of the server's `realtime/heard.py`.
 *
 * Pure functions. The text is ahead of the sound, and is taken to be spoken evenly.
 */

const USUAL_RATE = 16; // letters of an alphabet in a second of speech
const SYLLABIC = "[\\u3040-\\u30ff\\u3400-\\u9fff\\uac00-\\ud7a3\\uf900-\\ufaff]";
const SYLLABLE = 3; // letters that take as long as one sign of these scripts
const ENDS_A_WORD = new RegExp(`^(?:\\s|${SYLLABIC})$`);
const WHOLE_WORDS = new RegExp(`^.*(?:\\s|${SYLLABIC})`, "s");
const weight = (letter) => (letter.match(SYLLABIC) ? SYLLABLE : 1);

/** The beginning of `text` that was heard, in whole words; `wholeMs` of all of it, null if unknown. */
export function heardText(text, heardMs, wholeMs = null) {
  if (heardMs <= 0) return "";
  if (wholeMs !== null && heardMs >= wholeMs) return text;
  const letters = [...text];
  const all = letters.reduce((sum, letter) => sum + weight(letter), 0);
  let left = (wholeMs ? all / wholeMs : USUAL_RATE / 1000) * heardMs;
  const end = letters.findIndex((letter) => (left -= weight(letter)) < 0);
  if (end < 0) return text;
  const begun = letters.slice(0, end).join("");
  const words = ENDS_A_WORD.test(letters[end]) ? begun : begun.match(WHOLE_WORDS)?.[0] ?? "";
  return words.trimEnd();
}
