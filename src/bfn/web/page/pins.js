// The variables held fixed: flat index -> value, with undo.

export class Pins {
  constructor(changed) {
    this.now = new Map();
    this.past = [];
    this.changed = changed;
  }

  // A stroke of the brush is one entry in the history.
  remember() {
    this.past.push(new Map(this.now));
    if (this.past.length > 200) this.past.shift();
  }

  set(pairs) {
    for (const [i, value] of pairs) this.now.set(i, value);
    this.changed();
  }

  remove(places) {
    for (const i of places) this.now.delete(i);
    this.changed();
  }

  undo() {
    if (!this.past.length) return;
    this.now = this.past.pop();
    this.changed();
  }

  forget() {
    this.now = new Map();
    this.past = [];
  }

  message() {
    return { i: [...this.now.keys()], v: [...this.now.values()] };
  }
}
