// What can be set: one table for the controls, the address of the page, the workers and the lines of Python.

export const ALGORITHM_NAMES = {
  sgd: "SGD", lsam: "LSAM", sam: "SAM", weights: "Weights only", rates: "Rates only", both: "Weights and rates",
};

/** Whether an algorithm climbs by rho, and whether it takes weights or rates at the fixed head v*. */
export const climbs = (algorithm) => algorithm === "lsam" || algorithm === "sam";
export const usesStar = (algorithm) => ["weights", "rates", "both"].includes(algorithm);

/** How far the planes of the easy and the hard feature reach, for a complexity. */
export const SPANS = [() => 2.4, (chi) => 0.25 * ((chi * Math.PI) / 180 + 0.5) + 0.2];

const NOISE_LEVELS = { none: [0, 0], label: [0.05, 0.3], gaussian: [0.25, 1], dropout: [0.2, 0.5] }; // first, most

/**
 * Each setting with its first value and the values it may have: `choices` by name, `values` in a list, or numbers
 * from `min` to `max` in steps.
 */
export const SETTINGS = {
  left: { start: "sgd", choices: ALGORITHM_NAMES },
  right: { start: "lsam", choices: ALGORITHM_NAMES },
  rho: { start: 2, min: 0, max: 3, step: 0.05 },
  vStar: { start: 3, values: [0.5, 1, 1.5, 2, 3, 4, 8] },
  trainHead: { start: "yes", choices: { yes: "trained", no: "frozen at (1, 1)" } },
  lr: { start: 0.01, values: [0.001, 0.003, 0.01, 0.02, 0.04, 0.1, 0.3] },
  batch: { start: 5, values: [1, 2, 5, 10, 20, 50, 100, 300] },
  epochs: { start: 100, values: [10, 25, 50, 100, 200] },
  chi: { start: 360, min: 90, max: 780, step: 30 },
  corruption: {
    start: "none",
    choices: { none: "none", label: "flipped signs", gaussian: "Gaussian", dropout: "dropped features" },
  },
  level: { start: 0, min: 0, max: 1, step: 0.01 },
  where: { start: "both", choices: { both: "both features", hard: "hard feature only" } },
  seed: { start: 0, min: 0, max: 999, step: 1 },
};

/** The first value of every setting. */
export function startSettings() {
  return Object.fromEntries(Object.entries(SETTINGS).map(([name, { start }]) => [name, start]));
}

/** The most noise of a kind, and the amount it begins with. */
export function noiseLevels(corruption) {
  const [first, most] = NOISE_LEVELS[corruption];
  return { first, most };
}

/** Settings as the engine takes them, with the noise at 0 where there is none. */
export function forEngine(settings) {
  const level = settings.corruption === "none" ? 0 : settings.level;
  return { ...settings, level, trainHead: settings.trainHead === "yes" };
}

/** The part of the page's address after #: what differs from the start, and the epoch reached. */
export function toHash(settings, epoch = 0) {
  const changed = Object.keys(SETTINGS).filter((name) => settings[name] !== SETTINGS[name].start);
  const query = new URLSearchParams(changed.map((name) => [name, settings[name]]));
  if (epoch > 0) query.set("epoch", +epoch.toFixed(4));
  return query.toString();
}

/** Settings and epoch of an address; what is unknown or out of range is left at its start. */
export function fromHash(hash) {
  const query = new URLSearchParams(hash.replace(/^#/, "")), settings = startSettings();
  for (const [name, text] of query) if (name in SETTINGS) settings[name] = read(name, text) ?? settings[name];
  settings.level = Math.min(settings.level, noiseLevels(settings.corruption).most);
  const epoch = Number(query.get("epoch"));
  return { settings, epoch: epoch > 0 && epoch <= settings.epochs ? epoch : 0 };
}

function read(name, text) {
  const { choices, values, min, max, step } = SETTINGS[name];
  if (choices) return text in choices ? text : undefined;
  const number = text.trim() === "" ? NaN : Number(text);
  if (values) return values.includes(number) ? number : undefined;
  if (!(number >= min && number <= max)) return undefined;
  return +(Math.round((number - min) / step) * step + min).toFixed(4);
}

/** Both runs as a script for samphire. */
export function toPython(settings) {
  const { seed, chi, epochs, batch, lr, corruption, level, where } = settings;
  const shared = { chi, seed, epochs, batch, lr };
  if (corruption !== "none") Object.assign(shared, { corruption, level, where });
  if (settings.trainHead === "no") shared.train_head = false;
  const run = (algorithm) => {
    const own = { algorithm };
    if (climbs(algorithm)) own.rho = settings.rho;
    if (usesStar(algorithm)) own.v_star = settings.vStar;
    return `    ToyConfig(${keywords(own)}, **shared),`;
  };
  return [
    "import torch",
    "from samphire.train import ToyConfig, fit_many",
    `shared = dict(${keywords(shared)})`,
    "runs = [",
    run(settings.left),
    run(settings.right),
    "]",
    "for run in fit_many(runs, dtype=torch.float64):",
    '    errors = [run.final[name] for name in ("probe_hard", "probe_easy", "test_error")]',
    "    print(run.config.algorithm, *errors)",
  ].join("\n");
}

function keywords(values) {
  const literal = (value) => (value === false ? "False" : JSON.stringify(value));
  return Object.entries(values).map(([name, value]) => `${name}=${literal(value)}`).join(", ");
}
