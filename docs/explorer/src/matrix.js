// Products of small dense matrices, by rows in Float64Arrays. Loops go over blocks so that a loaded number is used
// several times: the four sums of a block are kept in registers.

/** out[r, o] = bias[o] + sum_k a[r, k] b[o, k]; the number of rows is even. */
export function timesTransposed(out, a, b, bias, rows, outputs, inner) {
  for (let r = 0; r < rows; r += 2) {
    const first = r * inner, second = first + inner;
    let o = 0;
    for (; o + 1 < outputs; o += 2) {
      const upper = o * inner, lower = upper + inner;
      let s00 = bias[o], s01 = bias[o + 1], s10 = s00, s11 = s01;
      for (let k = 0; k < inner; k++) {
        const a0 = a[first + k], a1 = a[second + k], b0 = b[upper + k], b1 = b[lower + k];
        s00 += a0 * b0;
        s01 += a0 * b1;
        s10 += a1 * b0;
        s11 += a1 * b1;
      }
      out[r * outputs + o] = s00;
      out[r * outputs + o + 1] = s01;
      out[(r + 1) * outputs + o] = s10;
      out[(r + 1) * outputs + o + 1] = s11;
    }
    for (; o < outputs; o++) {
      let s0 = bias[o], s1 = s0;
      for (let k = 0; k < inner; k++) {
        s0 += a[first + k] * b[o * inner + k];
        s1 += a[second + k] * b[o * inner + k];
      }
      out[r * outputs + o] = s0;
      out[(r + 1) * outputs + o] = s1;
    }
  }
}

/** out[r, j] = sum_o a[r, o] b[o, j]; the number of rows is even. */
export function times(out, a, b, rows, inner, columns) {
  out.fill(0, 0, rows * columns);
  for (let r = 0; r < rows; r += 2) {
    const first = r * columns, second = first + columns;
    let o = 0;
    for (; o + 1 < inner; o += 2) {
      const a00 = a[r * inner + o], a01 = a[r * inner + o + 1];
      const a10 = a[(r + 1) * inner + o], a11 = a[(r + 1) * inner + o + 1];
      const upper = o * columns, lower = upper + columns;
      for (let j = 0; j < columns; j++) {
        const b0 = b[upper + j], b1 = b[lower + j];
        out[first + j] += a00 * b0 + a01 * b1;
        out[second + j] += a10 * b0 + a11 * b1;
      }
    }
    for (; o < inner; o++) {
      const a0 = a[r * inner + o], a1 = a[(r + 1) * inner + o];
      for (let j = 0; j < columns; j++) {
        out[first + j] += a0 * b[o * columns + j];
        out[second + j] += a1 * b[o * columns + j];
      }
    }
  }
}

/** into[o, k] += alpha sum_r d[r, o] x[r, k]; the number of rows is even. */
export function addOuter(into, alpha, d, x, rows, outputs, inputs) {
  for (let r = 0; r < rows; r += 2) {
    const first = r * inputs, second = first + inputs;
    for (let o = 0; o < outputs; o++) {
      const d0 = alpha * d[r * outputs + o], d1 = alpha * d[(r + 1) * outputs + o], row = o * inputs;
      for (let k = 0; k < inputs; k++) into[row + k] += d0 * x[first + k] + d1 * x[second + k];
    }
  }
}
