// The list of events, one entry after the other, from the moment on or as far as a search finds them.

/** The number of rows that are listed at once. */
const EVENT_ROWS = 100;

const EVENT_KINDS = ["", "alloc", "free_requested", "free_completed", "segment", "segment back", "mark"];
const [, ALLOCATED, GIVEN_UP, FREED, TAKEN, RETURNED, MARKED] = EVENT_KINDS.keys();

/** The kind and the owner of each event. */
class Events {
  constructor(device) {
    this.device = device;
    const { blocks, segments, never } = device;
    this.kind = new Uint8Array(never);
    this.subject = new Uint32Array(never);
    const note = (position, kind, subject) => {
      if (position > 0 && position < never) {
        this.kind[position - 1] = kind;
        this.subject[position - 1] = subject;
      }
    };
    // If one event did two things, the page shows the later one in this list.
    for (let segment = 0; segment < segments.count; segment += 1) {
      note(segments.end[segment], RETURNED, segment);
      note(segments.start[segment], TAKEN, segment);
    }
    for (let block = 0; block < blocks.count; block += 1) {
      note(blocks.freed[block], GIVEN_UP, block);
      note(blocks.end[block], FREED, block);
      note(blocks.start[block], ALLOCATED, block);
    }
    device.marks.forEach((mark, number) => note(mark.position, MARKED, number));
  }

  /** The block of an event, plus one; `NO_OWNER` if it has none. */
  owner(event) {
    return [ALLOCATED, GIVEN_UP, FREED].includes(this.kind[event]) ? this.subject[event] + 1 : NO_OWNER;
  }

  /** Kind, bytes, address and the rest, as texts. */
  texts(event, page) {
    const { blocks, segments, marks } = this.device;
    const [kind, subject] = [this.kind[event], this.subject[event]];
    if (kind === 0) return ["…", "", "", ""];
    if (kind === MARKED) {
      const mark = marks[subject];
      return [mark.kind === "oom" ? "out of memory" : mark.kind, "", "", mark.text];
    }
    const of = kind === TAKEN || kind === RETURNED ? segments : blocks;
    const address = `0x${of.address[subject].toString(16)}`;
    const place = of === segments ? this.device.pools[segments.pool[subject]] : page.placeText(subject);
    return [EVENT_KINDS[kind], bytesText(of.size[subject]), address, place];
  }
}

class EventList {
  constructor(page) {
    this.page = page;
    this.words = [];
    this.from = null;
    let delay = 0;
    byId("events-search").addEventListener("input", ({ target }) => {
      clearTimeout(delay);
      delay = setTimeout(() => this.search(target.value), 150);
    });
    byId("events-panel").addEventListener("toggle", () => this.draw());
    byId("events-more").addEventListener("click", () => {
      this.from = this.next;
      this.draw();
    });
  }

  search(text) {
    this.words = text.toLowerCase().split(/\s+/).filter((word) => word !== "");
    this.from = this.words.length > 0 ? 0 : null;
    this.draw();
  }

  /** Whether all words are in the row of an event, or in the frames of its block. */
  isWanted(event, texts, stackMatches) {
    if (this.words.length === 0) return true;
    const owner = this.events.owner(event);
    const stack = owner === NO_OWNER ? 0 : this.page.device.blocks.stack[owner - 1];
    if (stack > 0 && stackMatches[stack - 1] === 1) return true;
    const line = texts.join(" ").toLowerCase();
    return this.words.every((word) => line.includes(word));
  }

  draw() {
    const { page } = this;
    if (!byId("events-panel").open || !page.profile) return;
    if (!this.events || this.events.device !== page.device) {
      this.events = new Events(page.device);
      this.from = this.words.length > 0 ? 0 : null;
    }
    const { never, hasTimes, times } = page.device;
    const stackMatches = this.words.length > 0 ? page.stacks.matches(this.words) : null;
    // Without a search the list begins a little before the moment.
    const first = this.from ?? Math.max(0, page.moment - 8);
    const rows = [];
    let event = first;
    for (; event < never - 1 && rows.length < EVENT_ROWS; event += 1) {
      const texts = this.events.texts(event, page);
      if (!this.isWanted(event, texts, stackMatches)) continue;
      const time = hasTimes ? durationText(times[event]) : "";
      const row = element("tr", event === page.moment - 1 ? "now" : "",
        ...[countText(event), time, ...texts].map((text) => element("td", "", text)));
      const at = event;
      onChoice(row, () => {
        page.setMoment(at + 1);
        page.keep(this.events.owner(at));
      });
      rows.push(row);
    }
    this.next = event;
    byId("events-rows").replaceChildren(...rows);
    byId("events-more").hidden = event >= never - 1;
    byId("events-note").textContent = rows.length === 0 ? "nothing like that" : "";
    this.shown = rows.length;
  }
}

/** The stages that the program marked: the peak of each, and when it was. */
function showStages(page) {
  const { stages } = page.device;
  byId("stages-panel").hidden = stages.length === 0;
  byId("stages-rows").replaceChildren(...stages.map((stage) => {
    const cells = [stage.name, countText(stage.times), durationText(stage.duration), bytesText(stage.live),
      bytesText(stage.own), bytesText(stage.reserved)];
    const row = element("tr", "", ...cells.map((text) => element("td", "", text)));
    row.title = "show its peak";
    onChoice(row, () => page.setMoment(stage.position));
    return row;
  }));
}

/** The settings of the allocator during the recording. */
function showSettings(page) {
  const { settings } = page.device;
  byId("settings-panel").hidden = settings.length === 0;
  byId("settings-rows").replaceChildren(...settings.map(([name, value]) =>
    element("tr", "", element("td", "", name), element("td", "", value))));
}
