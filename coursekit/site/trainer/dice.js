// Random choices that are the same in every language: coursekit/quiz/dice.py in JavaScript.

function hash(text) {
  let value = 0x811c9dc5;
  for (const byte of new TextEncoder().encode(text)) value = Math.imul(value ^ byte, 0x01000193);
  return value;
}

export class Dice {
  constructor(seed = crypto.randomUUID?.() ?? String(Math.random())) {
    [this.a, this.b, this.c, this.counter] = [hash(`0 ${seed}`), hash(`1 ${seed}`), hash(`2 ${seed}`), 1];
    for (let i = 0; i < 20; i++) this.next();
  }

  next() {
    const result = (this.a + this.b + this.counter) | 0;
    this.counter = (this.counter + 1) | 0;
    this.a = this.b ^ (this.b >>> 9);
    this.b = (this.c + (this.c << 3)) | 0;
    this.c = (((this.c << 21) | (this.c >>> 11)) + result) | 0;
    return result >>> 0;
  }

  below(n) {
    const limit = Math.floor(2 ** 32 / n) * n;
    let number = this.next();
    while (number >= limit) number = this.next();
    return number % n;
  }

  choice(items) {
    return items[this.below(items.length)];
  }

  shuffled(items) {
    const order = [...items];
    for (let i = order.length - 1; i > 0; i--) {
      const j = this.below(i + 1);
      [order[i], order[j]] = [order[j], order[i]];
    }
    return order;
  }
}
