// Trains both panes in lock step and posts frames: what the page draws. It runs in a Web Worker.
//
// In:  {type: "reset", id, settings, until, speed}   make both runs anew; go to epoch `until`, or play, if not 0
//      {type: "play", speed}                         epochs a second, or Infinity; stops after settings.epochs
//      {type: "pause"}, {type: "step", steps}        one batch or several
// Out: {type: "frame", id, epoch, playing, settings, panes: [pane, pane]}; see Pane.frame.

import { errors, field, gini, lorenz, pointMeasures, summarizeHeads, testSet } from "./measures.js";
import { Run } from "./run.js";
import { SPANS, forEngine } from "./settings.js";

const GRIDS = [24, 44]; // points along a side of the easy and of the hard plane
const SLICE = 25; // milliseconds of training between two looks at the messages
const FRAME = 150; // milliseconds between two frames

/** Whether the errors are measured after this epoch: each of the first 12, every second of the next 12, and so on. */
export function measuredAfter(epoch) {
  return Number.isInteger(epoch) && epoch % Math.ceil(epoch / 12) === 0;
}

/** One of the two runs, with the history that the page draws. */
export class Pane {
  constructor(settings, algorithm, test) {
    this.run = new Run({ ...settings, algorithm });
    this.rho = settings.rho;
    this.test = test;
    this.heads = []; // of the steps since the last whole epoch
    this.errors = []; // by epoch
    this.summaries = []; // of the heads of each epoch
    this.measure();
  }

  step() {
    this.heads.push(this.run.step());
    if (this.run.steps % this.run.stepsPerEpoch === 0) {
      this.summaries.push({ epoch: this.run.epoch, ...summarizeHeads(this.heads) });
      this.heads = [];
    }
  }

  /** Adds the errors at this point of training to the history. */
  measure() {
    if (this.errors.at(-1)?.epoch === this.run.epoch) return;
    this.errors.push({ epoch: this.run.epoch, ...errors(this.run.weights, this.test) });
  }

  /** Everything the page draws of this run. */
  frame() {
    const { run } = this, points = pointMeasures(run, this.rho);
    return {
      algorithm: run.settings.algorithm,
      head: [...run.weights["head.weight"]],
      errors: this.errors,
      summaries: this.summaries,
      fields: GRIDS.map((size, k) => ({ size, values: field(run.weights, k, SPANS[k](run.settings.chi), size) })),
      points: { x: run.points.x, y: run.points.y, ...points },
      lorenz: { real: lorenz(points.real), used: lorenz(points.used) },
      gini: { real: gini(points.real), used: gini(points.used) },
    };
  }
}

/** Both panes and the clock. `post` receives the frames. */
export class Trainer {
  constructor(post, now = () => performance.now()) {
    Object.assign(this, { post, now, speed: 0, waiting: null });
  }

  reset({ id, settings, until, speed }) {
    this.pause();
    const test = testSet(settings), { left, right } = settings;
    Object.assign(this, { id, settings });
    this.panes = [left, right].map((algorithm) => new Pane(forEngine(settings), algorithm, test));
    if (until > 0) this.play(Infinity, until);
    else if (speed > 0) this.play(speed);
    else this.frame();
  }

  get epoch() {
    return this.panes[0].run.epoch;
  }

  step(steps) {
    this.pause();
    for (let i = 0; i < steps; i++) this.#step();
    this.frame();
  }

  play(speed, until = this.settings.epochs) {
    this.pause();
    const { stepsPerEpoch } = this.panes[0].run;
    if (this.epoch < until) Object.assign(this, { speed, began: this.now(), from: this.epoch });
    this.until = Math.round(until * stepsPerEpoch) / stepsPerEpoch; // an address has four digits of it
    this.frame();
    if (this.speed) this.#slice();
  }

  pause() {
    clearTimeout(this.waiting);
    this.speed = 0;
  }

  frame() {
    if (!this.speed) this.panes.forEach((pane) => pane.measure());
    const { id, epoch, settings } = this, playing = this.speed > 0;
    this.post({ type: "frame", id, epoch, settings, playing, panes: this.panes.map((pane) => pane.frame()) });
    this.framed = this.now();
  }

  #step() {
    this.panes.forEach((pane) => pane.step());
    if (measuredAfter(this.epoch)) this.panes.forEach((pane) => pane.measure());
  }

  /** Trains for a moment, up to where the run should be by now, and comes back after the messages. */
  #slice() {
    const end = this.now() + SLICE;
    let measured = this.speed < Infinity; // a fast run shows a frame only if there are new errors
    while (this.epoch < this.until && this.now() < end && this.epoch < this.#due()) {
      this.#step();
      measured ||= measuredAfter(this.epoch);
    }
    if (this.epoch >= this.until) this.speed = 0;
    if (!this.speed || (measured && this.now() - this.framed > FRAME)) this.frame();
    if (this.speed) this.waiting = setTimeout(() => this.#slice(), this.speed === Infinity ? 0 : SLICE / 2);
  }

  #due() {
    return this.from + ((this.now() - this.began) / 1000) * this.speed;
  }
}

/** Connects a trainer to the messages of a worker. */
export function serve(scope) {
  const trainer = new Trainer((frame) => scope.postMessage(frame));
  scope.onmessage = ({ data }) => {
    if (data.type === "reset") trainer.reset(data);
    if (data.type === "play") trainer.play(data.speed);
    if (data.type === "pause" && trainer.speed) trainer.pause(), trainer.frame();
    if (data.type === "step") trainer.step(data.steps);
  };
}

if (typeof WorkerGlobalScope !== "undefined") serve(self);
