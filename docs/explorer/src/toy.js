// The toy of Springer et al. (2024), appendix E: a linear (easy) and a spiral (hard) feature in four dimensions.
// The same points as samphire.data.synthetic.toy: random numbers are drawn in one order for all settings.

import { generator } from "./random.js";

export const TRAIN_POINTS = 300, TEST_POINTS = 2000;
const A_EASY = 2, A_HARD = 0.25;

/** The training points of a run: {n, x (n by 4, easy feature first), y (-1 or 1)}. */
export function trainPoints({ seed, chi, corruption, level, where }) {
  return toy(TRAIN_POINTS, chi, generator(seed, "train"), { corruption, level, where });
}

/** Its test points, which have no noise. */
export function testPoints({ seed, chi }) {
  return toy(TEST_POINTS, chi, generator(seed, "test"), { corruption: "none", level: 0, where: "both" });
}

function toy(n, chi, random, noise) {
  const uniform = random.uniform(7 * n), gauss = random.normal(4 * n);
  const x = new Float64Array(4 * n), y = new Float64Array(n);
  for (let i = 0; i < n; i++) {
    const u = (row) => uniform[row * n + i];
    y[i] = u(0) < 0.5 ? -1 : 1;
    const easy = A_EASY * (y[i] * u(1)); // eq. 42
    const r = ((chi * Math.PI) / 180) * Math.sqrt(u(2)); // eq. 43, with the second arm a point reflection
    const hard = [-r * Math.cos(r) + 0.5 * u(3), r * Math.sin(r) + 0.5 * u(4)];
    x.set([easy, easy, y[i] * A_HARD * hard[0], y[i] * A_HARD * hard[1]], 4 * i); // eq. 44
    if (noise.where === "both") corrupt(x, 4 * i, noise, gauss, 4 * i, u(5));
    corrupt(x, 4 * i + 2, noise, gauss, 4 * i + 2, u(6));
  }
  return { n, x, y };
}

/** Equation 45 on one feature of one point. */
function corrupt(x, at, { corruption, level }, gauss, from, uniform) {
  for (let k = 0; k < 2; k++) {
    if (corruption === "gaussian") x[at + k] += level * gauss[from + k];
    else if (corruption === "label" && uniform < level) x[at + k] = -x[at + k];
    else if (corruption === "dropout" && uniform < level) x[at + k] = 0;
  }
}

/** [x_easy, 0] and [0, x_hard] of every point, one after the other: (2n by 4). */
export function twoViews({ n, x }) {
  const views = new Float64Array(8 * n);
  for (let i = 0; i < n; i++) {
    views.set(x.subarray(4 * i, 4 * i + 2), 8 * i);
    views.set(x.subarray(4 * i + 2, 4 * i + 4), 8 * i + 6);
  }
  return views;
}
