// A small line chart in SVG. Colors are classes of the style sheet, so that light and dark need no code.

const MARGIN = { top: 10, right: 14, bottom: 36, left: 44 };

/**
 * A chart in an element. `x` and `y` are {label, from, to, percent}; `describe` puts the drawing into words.
 * Layers, drawn in order, have a class that gives the color:
 *   {line: [[x, y], ...], kind}   {band: [[x, low, high], ...], kind}   {dots: [[x, y, radius], ...], kind}
 */
export class Chart {
  constructor(host, { x, y, ratio = 0.68 }) {
    Object.assign(this, { host, x, y, ratio, layers: [] });
    host.setAttribute("role", "img");
    new ResizeObserver(() => this.#render()).observe(host);
  }

  draw(layers, { x = this.x, y = this.y, label = "" } = {}) {
    Object.assign(this, { layers, x, y });
    this.host.setAttribute("aria-label", label);
    this.#render();
  }

  #render() {
    const width = Math.round(this.host.clientWidth), height = Math.round(width * this.ratio);
    if (!width) return;
    const right = width - MARGIN.right, bottom = height - MARGIN.bottom;
    const scale = (axis, low, high) => {
      const span = axis.to - axis.from || 1;
      const place = (value) => low + ((Math.min(Math.max(value, axis.from), axis.to) - axis.from) / span) * (high - low);
      return (value) => place(value).toFixed(1);
    };
    const sx = scale(this.x, MARGIN.left, right), sy = scale(this.y, bottom, MARGIN.top);
    const parts = [...grid(this.x, this.y, sx, sy, { right, bottom, width, height })];
    for (const layer of this.layers) parts.push(shape(layer, sx, sy));
    this.host.innerHTML =
      `<svg viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" aria-hidden="true">${parts.join("")}</svg>`;
  }
}

function* grid(x, y, sx, sy, { right, bottom, width, height }) {
  for (const value of ticks(y)) {
    yield `<line class="grid" x1="${MARGIN.left}" x2="${right}" y1="${sy(value)}" y2="${sy(value)}"/>`;
    yield `<text class="tick" x="${MARGIN.left - 6}" y="${sy(value)}" dy=".32em" text-anchor="end">${format(y, value)}</text>`;
  }
  for (const value of ticks(x))
    yield `<text class="tick" x="${sx(value)}" y="${bottom + 15}" text-anchor="middle">${format(x, value)}</text>`;
  yield `<line class="axis" x1="${MARGIN.left}" x2="${right}" y1="${bottom}" y2="${bottom}"/>`;
  yield `<text class="label" x="${(MARGIN.left + right) / 2}" y="${height - 3}" text-anchor="middle">${x.label}</text>`;
  if (y.label)
    yield `<text class="label" transform="translate(10 ${bottom / 2}) rotate(-90)" text-anchor="middle">${y.label}</text>`;
}

function shape({ line, band, dots, kind }, sx, sy) {
  if (line) return line.length ? `<path class="line ${kind}" d="M${line.filter(finite).map(([x, y]) => `${sx(x)} ${sy(y)}`).join("L")}"/>` : "";
  if (band) {
    const known = band.filter(finite);
    if (!known.length) return "";
    const upper = known.map(([x, , high]) => `${sx(x)} ${sy(high)}`), lower = known.map(([x, low]) => `${sx(x)} ${sy(low)}`);
    return `<path class="band ${kind}" d="M${[...upper, ...lower.reverse()].join("L")}Z"/>`;
  }
  return dots.filter(finite).map(([x, y, r = 4]) => `<circle class="dot ${kind}" cx="${sx(x)}" cy="${sy(y)}" r="${r}"/>`).join("");
}

const finite = (numbers) => numbers.every(Number.isFinite);

/** Round numbers along an axis, about five. */
export function ticks({ from, to }) {
  const rough = (to - from) / 5, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const values = [];
  for (let k = Math.ceil(from / step - 1e-9); k * step <= to + 1e-9 * step; k++) values.push(+(k * step).toPrecision(12));
  return values;
}

function format({ percent }, value) {
  return percent ? `${+(100 * value).toPrecision(3)} %` : String(+value.toPrecision(4)).replace("-", "−");
}
