// The random numbers of samphire and torch, bit for bit, so that a seed here is the same run as that seed there:
// samphire.records.generator(seed, purpose) and what torch's CPU generator draws from it.

/** A generator for one purpose, as samphire.records.generator: seeded by the SHA-256 of "seed:purpose". */
export function generator(seed, purpose) {
  const [high, low] = sha256(`${seed}:${purpose}`);
  // The seed is the first 64 bits shifted right by one; the Mersenne Twister takes its lower 32.
  return new Generator(((low >>> 1) | (high << 31)) >>> 0);
}

/** The Mersenne Twister (MT19937) and torch's ways of drawing from it. */
export class Generator {
  constructor(seed) {
    this.state = new Uint32Array(624);
    this.next = 624;
    this.state[0] = seed;
    for (let i = 1; i < 624; i++) {
      const last = this.state[i - 1] ^ (this.state[i - 1] >>> 30);
      this.state[i] = Math.imul(1812433253, last) + i;
    }
  }

  /** 32 random bits. */
  bits() {
    if (this.next === 624) this.#twist();
    let y = this.state[this.next++];
    y ^= y >>> 11;
    y ^= (y << 7) & 0x9d2c5680;
    y ^= (y << 15) & 0xefc60000;
    return (y ^ (y >>> 18)) >>> 0;
  }

  #twist() {
    const s = this.state;
    for (let i = 0; i < 624; i++) {
      const y = (s[i] & 0x80000000) | (s[(i + 1) % 624] & 0x7fffffff);
      s[i] = s[(i + 397) % 624] ^ (y >>> 1) ^ (y & 1 ? 0x9908b0df : 0);
    }
    this.next = 0;
  }

  /** torch.rand in float64: the lower 53 of 64 bits. */
  uniform(n) {
    return Float64Array.from({ length: n }, () => {
      const high = this.bits() & 0x1fffff, low = this.bits();
      return (high * 2 ** 32 + low) * 2 ** -53;
    });
  }

  /** torch.rand in float32, scaled to [-bound, bound): the lower 24 of 32 bits. */
  uniform32(n, bound) {
    const low = Math.fround(-bound), width = Math.fround(Math.fround(bound) - low);
    return Float64Array.from({ length: n }, () => {
      const unit = (this.bits() & 0xffffff) * 2 ** -24;
      return Math.fround(unit * width + low); // torch's compiler fuses product and sum: rounded once
    });
  }

  /** torch.randn in float64, for a multiple of 16 numbers: Box and Muller's transform in blocks of 16. */
  normal(n) {
    const values = this.uniform(n);
    for (let start = 0; start < n; start += 16) boxMuller(values, start);
    return values;
  }

  /** torch.randperm. */
  permutation(n) {
    const order = Int32Array.from({ length: n }, (_, i) => i);
    for (let i = 0; i < n - 1; i++) {
      const j = i + (this.bits() % (n - i));
      [order[i], order[j]] = [order[j], order[i]];
    }
    return order;
  }
}

function boxMuller(values, start) {
  for (let j = start; j < start + 8; j++) {
    const radius = Math.sqrt(-2 * Math.log(1 - values[j])), angle = 2 * Math.PI * values[j + 8];
    values[j] = radius * Math.cos(angle);
    values[j + 8] = radius * Math.sin(angle);
  }
}

/** The eight 32-bit words of the SHA-256 of a text of fewer than 56 ASCII characters (one block). */
export function sha256(text) {
  const primes = firstPrimes(64);
  const fraction = (x) => ((x % 1) * 2 ** 32) >>> 0;
  const constants = primes.map((p) => fraction(Math.cbrt(p)));
  const hash = primes.slice(0, 8).map((p) => fraction(Math.sqrt(p)));
  const turn = (x, by) => (x >>> by) | (x << (32 - by));

  const w = new Int32Array(64);
  for (let i = 0; i < text.length; i++) w[i >> 2] |= text.charCodeAt(i) << (24 - 8 * (i % 4));
  w[text.length >> 2] |= 0x80 << (24 - 8 * (text.length % 4));
  w[15] = 8 * text.length;
  for (let i = 16; i < 64; i++) {
    const a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + w[i - 7] + (turn(a, 7) ^ turn(a, 18) ^ (a >>> 3)) + (turn(b, 17) ^ turn(b, 19) ^ (b >>> 10));
  }
  let [a, b, c, d, e, f, g, h] = hash;
  for (let i = 0; i < 64; i++) {
    const one = h + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + ((e & f) ^ (~e & g)) + constants[i] + w[i];
    const two = (turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    [a, b, c, d, e, f, g, h] = [(one + two) | 0, a, b, c, (d + one) | 0, e, f, g];
  }
  return [a, b, c, d, e, f, g, h].map((x, i) => (x + hash[i]) >>> 0);
}

function firstPrimes(count) {
  const primes = [];
  for (let n = 2; primes.length < count; n++) if (primes.every((p) => n % p)) primes.push(n);
  return primes;
}
