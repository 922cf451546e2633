/** How loud a sine of 0.5 is (RMS) after the page's resampler, from `rate` to 24 kHz. */
async ([rate, hertz]) => {
  const context = new OfflineAudioContext(1, rate, rate);
  await context.audioWorklet.addModule("playground/worklets.js");
  const options = { processorOptions: { rate: 24000, samples: 960 } };
  const node = new AudioWorkletNode(context, "omni-microphone", options);
  const pieces = [];
  node.port.onmessage = ({ data }) => pieces.push(data);
  const gain = new GainNode(context, { gain: 0.5 });
  const sine = new OscillatorNode(context, { frequency: hertz });
  sine.connect(gain).connect(node).connect(context.destination);
  sine.start();
  await context.startRendering();
  await new Promise((resolve) => setTimeout(resolve, 100));
  const samples = pieces.slice(2).flatMap((piece) => [...piece]);
  return Math.sqrt(samples.reduce((sum, x) => sum + x * x, 0) / samples.length);
}
