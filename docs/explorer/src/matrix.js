// Products of small dense matrices, by rows in Float64Arrays. Loops go over blocks of 2 rows by 4, so that a number
// that is loaded serves several products; what does not fill a block of 4 follows one by one. The number of rows of
// the first matrix is always even: an example has two views.

/** out[r, o] = bias[o] + sum_k a[r, k] b[o, k] */
export function timesTransposed(out, a, b, bias, rows, outputs, inner) {
  for (let r = 0; r < rows; r += 2) {
    const first = r * inner, second = first + inner, upper = r * outputs, lower = upper + outputs;
    let o = 0;
    for (; o + 3 < outputs; o += 4) {
      const p = o * inner, q = p + inner, s = q + inner, t = s + inner;
      let u0 = bias[o], u1 = bias[o + 1], u2 = bias[o + 2], u3 = bias[o + 3];
      let l0 = u0, l1 = u1, l2 = u2, l3 = u3;
      for (let k = 0; k < inner; k++) {
        const a0 = a[first + k], a1 = a[second + k];
        const b0 = b[p + k], b1 = b[q + k], b2 = b[s + k], b3 = b[t + k];
        u0 += a0 * b0, u1 += a0 * b1, u2 += a0 * b2, u3 += a0 * b3;
        l0 += a1 * b0, l1 += a1 * b1, l2 += a1 * b2, l3 += a1 * b3;
      }
      out[upper + o] = u0, out[upper + o + 1] = u1, out[upper + o + 2] = u2, out[upper + o + 3] = u3;
      out[lower + o] = l0, out[lower + o + 1] = l1, out[lower + o + 2] = l2, out[lower + o + 3] = l3;
    }
    for (; o < outputs; o++) {
      let u = bias[o], l = u;
      for (let k = 0; k < inner; k++) {
        u += a[first + k] * b[o * inner + k];
        l += a[second + k] * b[o * inner + k];
      }
      out[upper + o] = u;
      out[lower + o] = l;
    }
  }
}

/** out[r, j] = sum_o a[r, o] b[o, j] */
export function times(out, a, b, rows, inner, columns) {
  out.fill(0, 0, rows * columns);
  for (let r = 0; r < rows; r += 2) {
    const upper = r * columns, lower = upper + columns, first = r * inner, second = first + inner;
    let o = 0;
    for (; o + 3 < inner; o += 4) {
      const u0 = a[first + o], u1 = a[first + o + 1], u2 = a[first + o + 2], u3 = a[first + o + 3];
      const l0 = a[second + o], l1 = a[second + o + 1], l2 = a[second + o + 2], l3 = a[second + o + 3];
      const p = o * columns, q = p + columns, s = q + columns, t = s + columns;
      for (let j = 0; j < columns; j++) {
        const b0 = b[p + j], b1 = b[q + j], b2 = b[s + j], b3 = b[t + j];
        out[upper + j] += u0 * b0 + u1 * b1 + u2 * b2 + u3 * b3;
        out[lower + j] += l0 * b0 + l1 * b1 + l2 * b2 + l3 * b3;
      }
    }
    for (; o < inner; o++) {
      const u = a[first + o], l = a[second + o], p = o * columns;
      for (let j = 0; j < columns; j++) {
        out[upper + j] += u * b[p + j];
        out[lower + j] += l * b[p + j];
      }
    }
  }
}

/** into[o, k] += alpha sum_r d[r, o] x[r, k] */
export function addOuter(into, alpha, d, x, rows, outputs, inputs) {
  for (let r = 0; r < rows; r += 2) {
    const upper = r * outputs, lower = upper + outputs, first = r * inputs, second = first + inputs;
    let o = 0;
    for (; o + 3 < outputs; o += 4) {
      const u0 = alpha * d[upper + o], u1 = alpha * d[upper + o + 1];
      const u2 = alpha * d[upper + o + 2], u3 = alpha * d[upper + o + 3];
      const l0 = alpha * d[lower + o], l1 = alpha * d[lower + o + 1];
      const l2 = alpha * d[lower + o + 2], l3 = alpha * d[lower + o + 3];
      const p = o * inputs, q = p + inputs, s = q + inputs, t = s + inputs;
      for (let k = 0; k < inputs; k++) {
        const x0 = x[first + k], x1 = x[second + k];
        into[p + k] += u0 * x0 + l0 * x1;
        into[q + k] += u1 * x0 + l1 * x1;
        into[s + k] += u2 * x0 + l2 * x1;
        into[t + k] += u3 * x0 + l3 * x1;
      }
    }
    for (; o < outputs; o++) {
      const u = alpha * d[upper + o], l = alpha * d[lower + o], p = o * inputs;
      for (let k = 0; k < inputs; k++) into[p + k] += u * x[first + k] + l * x[second + k];
    }
  }
}
