// A small chart in SVG. Colors are classes of the style sheet, so that light and dark need no code.

const MARGIN = { top: 10, right: 14, bottom: 42, left: 46 }, HEIGHT = 0.7; // of the width

/**
 * A chart in an element. It draws {x, y, layers, label}: axes {label, from, to}, a sentence for those who cannot see
 * it, and layers in order, whose `kind` are classes of the style sheet:
 *   {line: [[x, y], ...], kind}   {band: [[x, low, high], ...], kind}   {dots: [[x, y, radius], ...], kind}
 */
export class Chart {
  constructor(host) {
    this.host = host;
    host.setAttribute("role", "img");
    new ResizeObserver(() => this.picture && this.draw(this.picture)).observe(host);
  }

  draw(picture) {
    const { x, y, layers, label } = (this.picture = picture), width = Math.round(this.host.clientWidth);
    const height = Math.round(width * HEIGHT), right = width - MARGIN.right, bottom = height - MARGIN.bottom;
    this.host.setAttribute("aria-label", label);
    if (!width) return;
    const sx = scale(x, MARGIN.left, right), sy = scale(y, bottom, MARGIN.top);
    const parts = [...grid(x, y, sx, sy, { right, bottom, height }), ...layers.map((layer) => shape(layer, sx, sy))];
    const size = `viewBox="0 0 ${width} ${height}" width="${width}" height="${height}"`;
    this.host.innerHTML = `<svg ${size} aria-hidden="true">${parts.join("")}</svg>`;
  }
}

/** From a value to a place; what lies outside is put on the edge. */
function scale({ from, to }, low, high) {
  return (value) => (low + ((Math.min(Math.max(value, from), to) - from) / (to - from)) * (high - low)).toFixed(1);
}

function* grid(x, y, sx, sy, { right, bottom, height }) {
  const { left } = MARGIN, middle = `text-anchor="middle"`;
  for (const value of ticks(y)) {
    const at = sy(value);
    yield `<line class="grid" x1="${left}" x2="${right}" y1="${at}" y2="${at}"/>`;
    yield `<text class="tick" x="${left - 7}" y="${at}" dy=".32em" text-anchor="end">${shown(value)}</text>`;
  }
  for (const value of ticks(x)) {
    yield `<text class="tick" x="${sx(value)}" y="${bottom + 16}" ${middle}>${shown(value)}</text>`;
  }
  yield `<line class="axis" x1="${left}" x2="${right}" y1="${bottom}" y2="${bottom}"/>`;
  yield `<text class="label" x="${(left + right) / 2}" y="${height - 8}" ${middle}>${x.label}</text>`;
  const turned = `transform="translate(11 ${(MARGIN.top + bottom) / 2}) rotate(-90)"`;
  yield `<text class="label" ${turned} ${middle}>${y.label}</text>`;
}

function shape({ line, band, dots, kind }, sx, sy) {
  const known = (line ?? band ?? dots).filter((numbers) => numbers.every(Number.isFinite));
  if (!known.length) return "";
  if (line) return `<path class="line ${kind}" d="M${known.map(([x, y]) => `${sx(x)} ${sy(y)}`).join("L")}"/>`;
  if (dots) return `<path class="dot ${kind}" d="${known.map(([x, y, r]) => circle(sx(x), sy(y), r)).join("")}"/>`;
  const upper = known.map(([x, , high]) => `${sx(x)} ${sy(high)}`);
  const lower = known.map(([x, low]) => `${sx(x)} ${sy(low)}`);
  return `<path class="band ${kind}" d="M${[...upper, ...lower.reverse()].join("L")}Z"/>`;
}

const circle = (x, y, r) => `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0`;

/** Round numbers along an axis, about five. */
export function ticks({ from, to }) {
  const rough = (to - from) / 5, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= 0.999 * rough);
  const first = Math.ceil(from / step - 1e-9), last = Math.floor(to / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, k) => +((first + k) * step).toPrecision(12));
}

const shown = (value) => String(value).replace("-", "−");
