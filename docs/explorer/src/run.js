// One run of the toy: data, weights and order of the batches from its seed, as samphire.train.ToyConfig has them.

import { Stepper } from "./algorithms.js";
import { initialWeights } from "./network.js";
import { generator } from "./random.js";
import { trainPoints, twoViews } from "./toy.js";

export class Run {
  constructor(settings) {
    this.settings = settings;
    this.points = trainPoints(settings);
    this.views = twoViews(this.points);
    this.weights = initialWeights(generator(settings.seed, "init"));
    this.stepper = new Stepper(this.weights, settings);
    this.random = generator(settings.seed, "order");
    this.stepsPerEpoch = Math.ceil(this.points.n / settings.batch);
    this.steps = 0;
  }

  get epoch() {
    return this.steps / this.stepsPerEpoch;
  }

  /** One step on the next batch; the last of an epoch may be smaller. Returns the real and the phantom head. */
  step() {
    const place = this.steps++ % this.stepsPerEpoch, { batch } = this.settings;
    if (place === 0) this.order = this.random.permutation(this.points.n);
    const { x, y } = gather(this.views, this.points.y, this.order.subarray(place * batch, (place + 1) * batch));
    return this.stepper.step(x, y);
  }
}

/** The views (2B by 4) and labels of some points. */
export function gather(views, y, index) {
  const x = new Float64Array(8 * index.length);
  index.forEach((i, at) => x.set(views.subarray(8 * i, 8 * i + 8), 8 * at));
  return { x, y: Float64Array.from(index, (i) => y[i]) };
}
