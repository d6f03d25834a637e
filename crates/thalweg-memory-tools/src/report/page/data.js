// Reads the data that Rust wrote into the page (the counterpart is encode.rs).
//
// Moments are positions: position 0 is before the first event, position p after p events. A block or segment is live at
// positions start <= p < end.

function bytesOf(id) {
  const encoded = byId(id).textContent;
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(encoded);
  const text = atob(encoded);
  const bytes = new Uint8Array(text.length);
  for (let at = 0; at < bytes.length; at += 1) bytes[at] = text.charCodeAt(at);
  return bytes;
}

/** Columns of varints, one after the other. */
class Columns {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }

  /** Returns `count` numbers as doubles, valid until the next call. They may exceed 32 bits, so there are no shifts. */
  read(count) {
    if (!this.room || this.room.length < count) this.room = new Float64Array(count);
    const { bytes, room } = this;
    let { at } = this;
    for (let row = 0; row < count; row += 1) {
      let byte = bytes[at++];
      let value = byte & 127;
      for (let scale = 128; byte >= 128; scale *= 128) {
        byte = bytes[at++];
        value += (byte & 127) * scale;
      }
      room[row] = value;
    }
    this.at = at;
    return room.subarray(0, count);
  }

  number() {
    return this.read(1)[0];
  }

  /** A column of numbers, each times `unit`. */
  numbers(into, unit = 1) {
    const read = this.read(into.length);
    if (unit !== 1) for (let row = 0; row < read.length; row += 1) read[row] *= unit;
    // The conversion to the type of `into` runs in a loop of the browser.
    into.set(read);
    return into;
  }

  /** A column of signed numbers. */
  signed(into) {
    const read = this.read(into.length);
    for (let row = 0; row < read.length; row += 1) {
      const half = Math.floor(read[row] / 2);
      read[row] = half * 2 === read[row] ? half : -half - 1;
    }
    into.set(read);
    return into;
  }

  /** A column of differences from the previous row, summed up. */
  sums(into, unit = 1) {
    const read = this.signed(into instanceof Float64Array ? into : new Float64Array(into.length));
    let sum = 0;
    for (let row = 0; row < read.length; row += 1) {
      sum += read[row];
      read[row] = sum * unit;
    }
    if (read !== into) into.set(read);
    return into;
  }
}

/** The stacks: innermost frame first. */
class Stacks {
  constructor(meta) {
    const columns = new Columns(bytesOf("stacks"));
    this.texts = meta.texts;
    this.files = columns.numbers(new Uint32Array(meta.frames));
    this.functions = columns.numbers(new Uint32Array(meta.frames));
    this.lines = columns.numbers(new Uint32Array(meta.frames));
    this.frames = [];
    this.telling = new Uint32Array(meta.stacks);
    /** Whether each frame is the telling one of some stack. */
    this.tells = new Uint8Array(meta.frames);
    for (let stack = 0; stack < meta.stacks; stack += 1) {
      const length = columns.number();
      this.telling[stack] = columns.number();
      const frames = columns.numbers(new Uint32Array(length));
      this.frames.push(frames);
      if (length > 0) this.tells[frames[this.telling[stack]]] = 1;
    }
  }

  /** "train.py:12 forward" */
  frameText(frame) {
    const file = this.texts[this.files[frame]];
    const line = this.lines[frame];
    const place = line > 0 ? `${file}:${line}` : file;
    return `${place} ${this.texts[this.functions[frame]]}`.trim();
  }

  /** Returns the telling frame of a stack, which the analysis has chosen; -1 if it has none. */
  cause(stack) {
    const frames = this.frames[stack];
    return frames.length > 0 ? frames[this.telling[stack]] : -1;
  }

  /** Returns which stacks have a frame that contains all words. */
  matches(words) {
    const frameMatches = Uint8Array.from(this.lines, (_, frame) => {
      const text = this.frameText(frame).toLowerCase();
      return words.every((word) => text.includes(word)) ? 1 : 0;
    });
    return Uint8Array.from(this.frames, (frames) => (frames.some((frame) => frameMatches[frame] === 1) ? 1 : 0));
  }
}

/** All data of one device. */
class Device {
  constructor(meta, number) {
    Object.assign(this, meta);
    const columns = new Columns(bytesOf(`device-${number}`));
    const unit = columns.number();
    this.hasTimes = meta.firstTime !== null;
    /** Microseconds since the first event, for each event. */
    this.times = columns.sums(new Float64Array(this.hasTimes ? meta.events : 0));
    this.never = meta.events + 1;
    this.readBlocks(columns, meta.blocks, unit);
    this.segments = this.readSegments(columns, meta.segments, unit);
    this.curves = meta.curves.map((curve) => ({
      ...curve,
      positions: columns.sums(new Int32Array(curve.steps)),
      bytes: columns.sums(new Float64Array(curve.steps)),
    }));
  }

  readBlocks(columns, count, unit) {
    const start = columns.sums(new Int32Array(count));
    const freed = columns.numbers(new Int32Array(count));
    const end = columns.numbers(new Int32Array(count));
    for (let block = 0; block < count; block += 1) {
      freed[block] = freed[block] === 0 ? this.never : start[block] + freed[block];
      end[block] = end[block] === 0 ? this.never : freed[block] + end[block] - 1;
    }
    this.blocks = {
      count,
      start,
      freed,
      end,
      address: columns.sums(new Float64Array(count), unit),
      /** The bytes that it takes in its segment. */
      place: columns.numbers(new Float64Array(count), unit),
      /** The requested bytes, which count as live. */
      size: columns.signed(new Float64Array(count)),
      stream: columns.numbers(new Uint16Array(count)),
      pool: columns.numbers(new Uint16Array(count)),
      category: columns.numbers(new Uint16Array(count)),
      /** The stack plus one; 0 for none. */
      stack: columns.numbers(new Uint32Array(count)),
      latestEnd: latestEnds(end),
    };
    const { size, place } = this.blocks;
    for (let block = 0; block < count; block += 1) size[block] = place[block] - size[block];
  }

  readSegments(columns, count, unit) {
    const start = columns.sums(new Int32Array(count));
    const end = columns.numbers(new Int32Array(count));
    for (let segment = 0; segment < count; segment += 1) {
      end[segment] = end[segment] === 0 ? this.never : start[segment] + end[segment];
    }
    return {
      count,
      start,
      end,
      address: columns.sums(new Float64Array(count), unit),
      size: columns.numbers(new Float64Array(count), unit),
      stream: columns.numbers(new Uint16Array(count)),
      pool: columns.numbers(new Uint16Array(count)),
      isExpandable: columns.numbers(new Uint8Array(count)),
    };
  }

  /** Calls `visit` with each block that is live at some position from `first` to `last`, in order of allocation. */
  visitLive(first, last, visit) {
    const { count, start, end, latestEnd } = this.blocks;
    for (let chunk = 0; chunk < latestEnd.length; chunk += 1) {
      const from = chunk * CHUNK;
      if (start[from] > last) return;
      if (latestEnd[chunk] <= first) continue;
      const to = Math.min(count, from + CHUNK);
      for (let block = from; block < to; block += 1) {
        if (start[block] <= last && end[block] > first) visit(block);
      }
    }
  }
}

/** The number of blocks that are skipped in one step if none of them lives long enough. */
const CHUNK = 256;

function latestEnds(end) {
  const latest = new Int32Array(Math.ceil(end.length / CHUNK));
  for (let block = 0; block < end.length; block += 1) {
    const chunk = Math.floor(block / CHUNK);
    if (end[block] > latest[chunk]) latest[chunk] = end[block];
  }
  return latest;
}
