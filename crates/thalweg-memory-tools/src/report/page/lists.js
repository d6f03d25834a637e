// The texts next to the pictures: figures, findings, which code holds the memory at the moment, the kept block, the tooltip.

/** The tooltip at the mouse. */
class Tip {
  constructor() {
    this.box = byId("tip");
  }

  show(event, lines) {
    const [first, ...others] = lines.filter((line) => line !== "");
    this.box.replaceChildren(element("b", "", first), ...others.map((line) => element("div", "", line)));
    this.box.hidden = false;
    const { offsetWidth, offsetHeight } = this.box;
    const x = event.clientX + 16 + offsetWidth > innerWidth ? event.clientX - offsetWidth - 12 : event.clientX + 16;
    const y = clamp(event.clientY + 16, 0, Math.max(0, innerHeight - offsetHeight - 8));
    this.box.style.transform = `translate(${Math.max(4, x)}px, ${y}px)`;
  }

  hide() {
    this.box.hidden = true;
  }
}

function figureText(figure) {
  if ("bytes" in figure) return bytesText(figure.bytes);
  if ("count" in figure) return countText(figure.count);
  if ("share" in figure) return shareText(figure.share);
  return figure.text;
}

function showFigures(device) {
  byId("figures").replaceChildren(...device.figures.map((figure) => {
    const value = element("div", "value", figureText(figure));
    if ("bytes" in figure) value.title = `${countText(figure.bytes)} bytes`;
    const tile = element("div", `figure ${figure.tone}`, element("div", "label", figure.label), value);
    tile.dataset.key = figure.key;
    if (figure.note !== "") tile.append(element("div", "note", figure.note));
    return tile;
  }));
  byId("findings").replaceChildren(...device.findings.map((finding) => element("li", "", finding)));
  byId("findings").hidden = device.findings.length === 0;
}

/** The greatest number of rows in the list of groups. */
const GROUP_ROWS = 14;

/** A frame with the last two parts of its file's path, in the format of the command. */
function shortFrame(text) {
  const end = text.search(/:\d+( |$)/);
  const path = end < 0 ? text : text.slice(0, end);
  return path.split("/").slice(-2).join("/") + text.slice(path.length);
}

/** Lists which code holds the memory at the moment; returns the rows shown. */
function showGroups(page) {
  const { groups, profile, moment, theme } = page;
  const rows = groups.at(moment, profile.passes);
  const total = profile.live[moment];
  const most = rows.length > 0 ? rows[0].bytes : 1;
  byId("moment").textContent = page.momentText();
  const items = rows.slice(0, GROUP_ROWS).map(({ group, bytes, count }) => {
    const swatch = element("span", "swatch");
    swatch.style.background = css(groups.colour(group, theme));
    const bar = element("span", "bar");
    bar.style.width = `${(bytes / most) * 100}%`;
    bar.style.background = css(groups.colour(group, theme), 0.28);
    const row = element("button", "group", bar, swatch,
      element("span", "group-name", shortFrame(groups.name(group))),
      element("b", "group-bytes", bytesText(bytes)),
      element("span", "group-share", `${shareText(total > 0 ? bytes / total : 0)} in ${countText(count)} ${count === 1 ? "block" : "blocks"}`));
    row.type = "button";
    row.title = `${groups.name(group)}\n${countText(bytes)} bytes in ${countText(count)} blocks\nhighlight it`;
    row.setAttribute("aria-pressed", String(page.litGroup === group));
    row.addEventListener("click", () => page.lightGroup(page.litGroup === group ? null : group));
    return row;
  });
  if (rows.length > GROUP_ROWS) {
    const rest = rows.slice(GROUP_ROWS).reduce((sum, row) => sum + row.bytes, 0);
    items.push(element("p", "rest", `and ${bytesText(rest)} in ${countText(rows.length - GROUP_ROWS)} more`));
  }
  if (rows.length === 0) items.push(element("p", "rest", "nothing is live"));
  byId("groups").replaceChildren(...items);
  return rows;
}

/** Shows all information about the kept block. */
function showDetail(page) {
  const box = byId("detail");
  box.hidden = page.kept === NO_OWNER;
  if (box.hidden) return;
  const block = page.kept - 1;
  const { device, stacks } = page;
  const { blocks } = device;
  const facts = element("dl", "facts");
  const fact = (name, text) => facts.append(element("dt", "", name), element("dd", "", text));
  fact("asked for", `${bytesText(blocks.size[block])} (${countText(blocks.size[block])} bytes)`);
  if (blocks.place[block] !== blocks.size[block]) fact("takes", `${countText(blocks.place[block])} bytes in its segment`);
  fact("lives", page.lifeText(block));
  fact("address", `0x${blocks.address[block].toString(16)}`);
  fact("stream", device.streams[blocks.stream[block]]);
  fact("pool", device.pools[blocks.pool[block]]);
  fact("category", page.meta.categories[blocks.category[block]]);
  const close = element("button", "close", "×");
  close.type = "button";
  close.setAttribute("aria-label", "let go of the block");
  close.addEventListener("click", () => page.keep(NO_OWNER));
  const frames = blocks.stack[block] === 0 ? [] : stacks.frames[blocks.stack[block] - 1];
  const cause = blocks.stack[block] === 0 ? -1 : stacks.cause(blocks.stack[block] - 1);
  const list = element("ol", "stack", ...Array.from(frames, (frame) => {
    const item = element("li", frame === cause ? "cause" : "", stacks.frameText(frame));
    return item;
  }));
  if (frames.length === 0) list.append(element("li", "", "no stack was recorded"));
  box.replaceChildren(close, element("h2", "", "The chosen block"), facts, list);
}

/** Fills a select element with options: pairs of value and text. */
function fillChoice(id, options, isUseful = options.length > 1) {
  const choice = byId(id);
  choice.replaceChildren(...options.map(([value, text]) => {
    const option = element("option", "", text);
    option.value = value;
    return option;
  }));
  choice.closest("label").hidden = !isUseful;
}
