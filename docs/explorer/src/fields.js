// A feature's plane: the probability of label 1 by that feature alone, its boundary, and the training points.

import { SPANS } from "./settings.js";

/** Draws one plane on a canvas and tells which point a pointer is at. */
export class Field {
  constructor(canvas, feature) {
    Object.assign(this, { canvas, feature, context: canvas.getContext("2d") });
    this.small = document.createElement("canvas"); // one pixel for each point of the grid
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  /** Shows a pane of a frame, its points sized by some weights; `marked` is the index of a point or -1. */
  show(pane, chi, weights, marked) {
    Object.assign(this, { pane, chi, weights, marked });
    this.draw();
  }

  draw() {
    if (!this.pane || !this.canvas.clientWidth) return;
    const extent = this.canvas.clientWidth, dense = Math.min(window.devicePixelRatio || 1, 2);
    const pixels = Math.round(extent * dense), style = getComputedStyle(this.canvas);
    if (this.canvas.width !== pixels) this.canvas.width = this.canvas.height = pixels;
    this.extent = extent;
    const colors = Object.fromEntries(
      ["plus", "minus", "surface", "ink"].map((name) => [name, style.getPropertyValue(`--${name}`).trim()]),
    );
    this.context.setTransform(dense, 0, 0, dense, 0, 0);
    this.#background(colors);
    this.#boundary(colors);
    this.#points(colors);
  }

  /** The index of the point nearest to a place on the canvas, or -1 if none is near. */
  pointAt(left, top) {
    let best = -1, least = 16 ** 2;
    for (let i = 0; i < this.pane.points.y.length; i++) {
      const [px, py] = this.#place(i), distance = (px - left) ** 2 + (py - top) ** 2;
      if (distance < least) [best, least] = [i, distance];
    }
    return best;
  }

  #place(i) {
    const { x } = this.pane.points, at = 4 * i + 2 * this.feature, span = SPANS[this.feature](this.chi);
    return [(this.extent * (1 + x[at] / span)) / 2, (this.extent * (1 - x[at + 1] / span)) / 2];
  }

  #background({ plus, minus, surface }) {
    const { size, values } = this.pane.fields[this.feature], { data } = (this.image ??= new ImageData(size, size));
    const [high, low, middle] = [plus, minus, surface].map(rgb);
    for (let row = 0; row < size; row++) {
      for (let column = 0; column < size; column++) {
        const p = values[(size - 1 - row) * size + column], toward = p > 0.5 ? high : low;
        const share = 0.06 + 0.34 * Math.abs(2 * p - 1), at = 4 * (row * size + column);
        for (let k = 0; k < 3; k++) data[at + k] = middle[k] + share * (toward[k] - middle[k]);
        data[at + 3] = 255;
      }
    }
    this.small.width = this.small.height = size;
    this.small.getContext("2d").putImageData(this.image, 0, 0);
    this.context.imageSmoothingQuality = "high";
    this.context.drawImage(this.small, 0, 0, this.extent, this.extent);
  }

  /** The line on which the feature has no opinion, p = 1/2: straight in each cell of the grid (marching squares). */
  #boundary({ ink }) {
    const { size, values } = this.pane.fields[this.feature], cell = this.extent / size, { context } = this;
    context.beginPath();
    for (let row = 0; row + 1 < size; row++) {
      for (let column = 0; column + 1 < size; column++) {
        const at = row * size + column, corners = [at, at + 1, at + size + 1, at + size];
        const above = corners.map((corner) => values[corner] > 0.5);
        if (above.every((side) => side === above[0])) continue;
        const ends = [0, 1, 2, 3].filter((k) => above[k] !== above[(k + 1) % 4]).map((k) => {
          const a = corners[k], b = corners[(k + 1) % 4], t = (values[a] - 0.5) / (values[a] - values[b]);
          const [ax, ay, bx, by] = [a % size, Math.floor(a / size), b % size, Math.floor(b / size)];
          return [(ax + t * (bx - ax) + 0.5) * cell, this.extent - (ay + t * (by - ay) + 0.5) * cell];
        });
        for (let k = 0; k < ends.length; k += 2) {
          context.moveTo(...ends[k]);
          context.lineTo(...ends[k + 1]);
        }
      }
    }
    Object.assign(context, { strokeStyle: ink, lineWidth: 1.6 });
    context.stroke();
  }

  /** Circles for label 1 and triangles for -1, light ones last so that heavy ones do not hide them. */
  #points({ plus, minus, surface, ink }) {
    const { context, weights } = this, { y } = this.pane.points;
    const order = [...weights.keys()].sort((a, b) => weights[b] - weights[a]);
    for (const i of order) {
      const [px, py] = this.#place(i), radius = 2.2 + 6 * Math.sqrt(weights[i]);
      mark(context, px, py, radius, y[i] > 0);
      Object.assign(context, { fillStyle: y[i] > 0 ? plus : minus, strokeStyle: surface, lineWidth: 0.5 });
      context.fill();
      context.stroke();
    }
    if (this.marked >= 0) {
      const [px, py] = this.#place(this.marked);
      mark(context, px, py, 6 + 6 * Math.sqrt(weights[this.marked]), true);
      Object.assign(context, { strokeStyle: ink, lineWidth: 2.2 });
      context.stroke();
    }
  }
}

function mark(context, x, y, radius, circle) {
  context.beginPath();
  if (circle) return context.arc(x, y, radius, 0, 2 * Math.PI);
  const r = 1.3 * radius; // a triangle of about the same area
  context.moveTo(x, y - r);
  context.lineTo(x + 0.87 * r, y + r / 2);
  context.lineTo(x - 0.87 * r, y + r / 2);
  context.closePath();
}

/** The numbers of #rrggbb. */
function rgb(hex) {
  return [1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16));
}
