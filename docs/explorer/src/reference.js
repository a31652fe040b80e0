// The errors of ten seeds (results/toy/fig2.csv) that a run can be compared with.

import { SETTINGS, startSettings } from "./settings.js";

const FREE = ["left", "right", "rho", "vStar", "seed"]; // what may differ between runs in one picture of errors

/** A text that is equal for settings whose errors belong in one picture. */
export function kindOfRun(settings) {
  return JSON.stringify(Object.keys(SETTINGS).map((name) => (FREE.includes(name) ? null : settings[name])));
}

/** `rows` are chi, rho, and mean and standard deviation of the hard and of the easy probe error after 100 epochs. */
export class Reference {
  constructor(rows) {
    const band = (mean, deviation) => ({ mean, low: Math.max(mean - deviation, 0), high: mean + deviation });
    this.curves = new Map();
    for (const [chi, rho, ...errors] of rows) {
      const point = { rho, hard: band(errors[0], errors[1]), easy: band(errors[2], errors[3]) };
      this.curves.set(chi, [...(this.curves.get(chi) ?? []), point]);
    }
  }

  /** Means and bands against rho for these settings, or null if they were not run. */
  curve(settings) {
    const start = { ...startSettings(), chi: settings.chi };
    return kindOfRun(settings) === kindOfRun(start) ? this.curves.get(settings.chi) ?? null : null;
  }

  /** Means and bands of one algorithm, linear between the radii that were run; null if there are none. */
  at(settings, algorithm) {
    const curve = this.curve(settings), rho = algorithm === "lsam" ? settings.rho : 0;
    if (!curve || !["sgd", "lsam"].includes(algorithm)) return null;
    const next = curve.findIndex((point) => point.rho >= rho);
    if (next <= 0) return next === 0 ? curve[0] : null;
    const [a, b] = [curve[next - 1], curve[next]], share = (rho - a.rho) / (b.rho - a.rho);
    const between = (kind) => {
      const value = (name) => a[kind][name] + share * (b[kind][name] - a[kind][name]);
      return { mean: value("mean"), low: value("low"), high: value("high") };
    };
    return { rho, hard: between("hard"), easy: between("easy") };
  }
}
