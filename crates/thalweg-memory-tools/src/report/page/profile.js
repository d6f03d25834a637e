// The live and reserved memory at every position, of the blocks and segments that pass the filters.

/** The maximum of any range of values, in logarithmic time: 16 values of one level make one of the next. */
class Pyramid {
  constructor(values) {
    this.values = values;
    /** levels[k][i] is the index of the greatest of the i-th 16^(k+1) values. */
    this.levels = [];
    for (let length = values.length; length > 1; length = Math.ceil(length / 16)) {
      this.levels.push(this.level(length));
    }
  }

  level(length) {
    const below = this.levels[this.levels.length - 1];
    const made = new Int32Array(Math.ceil(length / 16));
    for (let group = 0; group < made.length; group += 1) {
      const to = Math.min(length, group * 16 + 16);
      let best = below ? below[group * 16] : group * 16;
      for (let member = group * 16 + 1; member < to; member += 1) {
        const index = below ? below[member] : member;
        if (this.values[index] > this.values[best]) best = index;
      }
      made[group] = best;
    }
    return made;
  }

  /** The index of the greatest value from index `low` up to before `high`, which is greater than `low`. */
  greatest(low, high) {
    const { values, levels } = this;
    let best = low;
    let from = low;
    let to = high;
    for (let level = -1; ; level += 1) {
      const indices = levels[level];
      while (from < to && (from & 15) !== 0) {
        const index = indices ? indices[from] : from;
        if (values[index] > values[best]) best = index;
        from += 1;
      }
      while (from < to && (to & 15) !== 0) {
        to -= 1;
        const index = indices ? indices[to] : to;
        if (values[index] > values[best]) best = index;
      }
      if (from >= to) return best;
      from >>= 4;
      to >>= 4;
    }
  }
}

/** The sum of `size` over the objects that pass `passes`, at every position. */
function sumOver(positions, things, passes) {
  const sums = new Float64Array(positions);
  const { start, end, size } = things;
  for (let thing = 0; thing < things.count; thing += 1) {
    if (passes && passes[thing] === 0) continue;
    sums[start[thing]] += size[thing];
    if (end[thing] < positions) sums[end[thing]] -= size[thing];
  }
  for (let position = 1; position < positions; position += 1) sums[position] += sums[position - 1];
  return sums;
}

/** The first index of the greatest value. */
function firstGreatest(values) {
  let best = 0;
  for (let index = 1; index < values.length; index += 1) if (values[index] > values[best]) best = index;
  return best;
}

/** The objects that pass the filters, and their curves. `null` for a stream, pool or category means any. */
class Profile {
  constructor(device, filter, stackMatches) {
    this.device = device;
    this.filter = filter;
    const { blocks, segments } = device;
    const matches = (things, thing) =>
      (filter.stream === null || things.stream[thing] === filter.stream) &&
      (filter.pool === null || things.pool[thing] === filter.pool);
    this.passes = new Uint8Array(blocks.count);
    for (let block = 0; block < blocks.count; block += 1) {
      const category = filter.category === null || blocks.category[block] === filter.category;
      const stack = !stackMatches || (blocks.stack[block] > 0 && stackMatches[blocks.stack[block] - 1] === 1);
      this.passes[block] = category && stack && matches(blocks, block) ? 1 : 0;
    }
    this.segmentPasses = new Uint8Array(segments.count);
    for (let segment = 0; segment < segments.count; segment += 1) {
      this.segmentPasses[segment] = matches(segments, segment) ? 1 : 0;
    }
    const positions = device.never;
    this.live = sumOver(positions, blocks, this.passes);
    this.reserved = sumOver(positions, segments, this.segmentPasses);
    this.livePyramid = new Pyramid(this.live);
    this.reservedPyramid = new Pyramid(this.reserved);
    this.peak = firstGreatest(this.live);
    this.reservedPeak = firstGreatest(this.reserved);
  }

  get peakLive() {
    return this.live[this.peak];
  }

  get peakReserved() {
    return this.reserved[this.reservedPeak];
  }
}

/** The horizontal axis: positions, or microseconds since the first event. */
class Axis {
  constructor(device, kind) {
    this.device = device;
    this.isTime = kind === "time" && device.hasTimes;
    this.begin = 0;
    const last = device.events > 0 ? device.times[device.events - 1] : 0;
    this.end = this.isTime ? Math.max(last * 1.001, 1) : device.never;
    /** The width below which no view is narrowed. */
    this.least = Math.min(this.isTime ? 5 : 8, this.end);
  }

  /** The last position at or before a coordinate. */
  positionAt(coordinate) {
    const found = this.isTime ? upperBound(this.device.times, coordinate) : Math.floor(coordinate);
    return clamp(found, 0, this.device.never - 1);
  }

  /** The coordinate at which a position begins. */
  coordinate(position) {
    if (!this.isTime) return position;
    return position === 0 ? 0 : this.device.times[Math.min(position, this.device.events) - 1];
  }

  text(coordinate) {
    return this.isTime ? durationText(Math.round(coordinate)) : countText(coordinate);
  }
}
