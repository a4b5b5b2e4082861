// Draw: canvases that are sharp on every screen, colours from the style sheet, a tip beside the pointer. Knows no data.

const style = getComputedStyle(document.documentElement);
let known = new Map();

export const forgetColours = () => (known = new Map());

export function colour(name) {
  if (!known.has(name)) known.set(name, style.getPropertyValue(name).trim());
  return known.get(name);
}

export function rgb(name) {
  const text = colour(name);
  return [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
}

export function mix(from, to, share) {
  const [a, b] = [rgb(from), rgb(to)];
  return `rgb(${a.map((one, at) => Math.round(one + (b[at] - one) * share)).join(" ")})`;
}

// The canvas in CSS pixels: [context, width, height].
export function ready(canvas, height) {
  const box = canvas.getBoundingClientRect();
  const [wide, high] = [Math.max(1, Math.floor(box.width)), Math.max(1, Math.floor(height ?? box.height))];
  const scale = Math.min(3, window.devicePixelRatio || 1);
  if (height !== undefined && canvas.style.height !== `${high}px`) canvas.style.height = `${high}px`;
  const [w, h] = [Math.round(wide * scale), Math.round(high * scale)];
  if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, wide, high);
  return [context, wide, high];
}

export function sparkline(canvas, values, name, top) {
  const [pen, wide, high] = ready(canvas);
  if (values.length < 2 || Math.max(...values) <= 0) return;
  const most = top ?? Math.max(...values, 1e-9);
  const x = (at) => (at * wide) / (values.length - 1);
  const y = (value) => high - 2 - (Math.min(value, most) / most) * (high - 6);
  pen.beginPath();
  values.forEach((value, at) => pen.lineTo(x(at), y(value)));
  pen.lineWidth = 1.75;
  pen.lineJoin = "round";
  pen.strokeStyle = colour(name);
  pen.stroke();
  pen.lineTo(wide, high);
  pen.lineTo(0, high);
  pen.globalAlpha = 0.14;
  pen.fillStyle = colour(name);
  pen.fill();
  pen.globalAlpha = 1;
}

// Two rows of bars from one line: one up, one down.
export function upAndDown(canvas, ups, downs, names) {
  const [pen, wide, high] = ready(canvas);
  const most = Math.max(1e-9, ...ups, ...downs);
  const step = wide / Math.max(60, ups.length);
  const first = wide - step * ups.length;
  const middle = high / 2;
  pen.fillStyle = colour("--rule");
  pen.fillRect(0, middle - 0.5, wide, 1);
  for (const [values, name, sign] of [[ups, names[0], -1], [downs, names[1], 1]]) {
    pen.fillStyle = colour(name);
    values.forEach((value, at) => {
      const tall = (value / most) * (middle - 2);
      if (tall > 0) pen.fillRect(first + at * step, sign < 0 ? middle - 1 - Math.max(1, tall) : middle + 1, Math.max(1, step - 1), Math.max(1, tall));
    });
  }
}

const tip = document.getElementById("tip");

export function showTip(text, x, y) {
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(8, Math.min(x + 14, window.innerWidth - box.width - 8))}px`;
  tip.style.top = `${y + 18 + box.height > window.innerHeight ? Math.max(8, y - box.height - 12) : y + 18}px`;
}

export const hideTip = () => (tip.hidden = true);
export const say = (text) => (document.getElementById("say").textContent = text);
export const calm = () => window.matchMedia("(prefers-reduced-motion: reduce)").matches;

export function element(name, kind, text) {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  if (text !== undefined) made.textContent = text;
  return made;
}
