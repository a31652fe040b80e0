// The errors of ten seeds (results/toy/fig2.csv) that a run can be compared with.

import { SETTINGS } from "./settings.js";

const FREE = ["left", "right", "rho", "vStar", "chi", "seed"]; // all other settings must be at their start

/** `rows` are [chi, rho, mean, standard deviation] of the hard probe error after 100 epochs. */
export class Reference {
  constructor(rows) {
    this.curves = new Map();
    for (const [chi, rho, mean, deviation] of rows) {
      const point = { rho, mean, low: Math.max(mean - deviation, 0), high: mean + deviation };
      this.curves.set(chi, [...(this.curves.get(chi) ?? []), point]);
    }
  }

  /** Mean and band against rho for these settings, or null if they were not run. */
  curve(settings) {
    const same = Object.keys(SETTINGS).every((name) => FREE.includes(name) || settings[name] === SETTINGS[name].start);
    return same ? this.curves.get(settings.chi) ?? null : null;
  }

  /** Mean and band of one algorithm, linear between the radii that were run; null if there is none. */
  at(settings, algorithm) {
    const curve = this.curve(settings), rho = algorithm === "lsam" ? settings.rho : 0;
    if (!curve || !["sgd", "lsam"].includes(algorithm)) return null;
    const next = curve.findIndex((point) => point.rho >= rho);
    if (next <= 0) return next === 0 ? curve[0] : null;
    const [a, b] = [curve[next - 1], curve[next]], share = (rho - a.rho) / (b.rho - a.rho);
    const between = (name) => a[name] + share * (b[name] - a[name]);
    return { rho, mean: between("mean"), low: between("low"), high: between("high") };
  }
}
