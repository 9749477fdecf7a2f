// Talking to the server: the token, busy answers that are tried again, one-line errors.

const token = new URLSearchParams(location.hash.slice(1)).get("token") ?? sessionStorage.getItem("circle-token");
if (location.hash) {
  sessionStorage.setItem("circle-token", token ?? "");
  history.replaceState(null, "", "/");
}

const wait = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

async function ask(path, options = {}, patience = 20) {
  const headers = { ...(options.headers ?? {}), ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  for (let attempt = 0; ; attempt += 1) {
    let response;
    try {
      response = await fetch(path, { ...options, headers, cache: "no-store", credentials: "omit" });
    } catch {
      throw new Error("The server cannot be reached: has it ended, or the network gone?");
    }
    if (response.ok) return response;
    if ((response.status === 503 || response.status === 429) && attempt < patience) {
      await wait(200 + 300 * Math.random());
      continue;
    }
    let text = `${response.status}`;
    try {
      text = (await response.json()).error;
    } catch { /* no JSON: the number must do */ }
    const error = new Error(response.status === 401 ? "This server needs a token: open it with #token=… in the address." : text);
    error.status = response.status;
    throw error;
  }
}

const TRANSFER = 100; // attempts: there is one transfer of a model at a time

const json = (path, value) =>
  ask(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(value) }).then((r) => r.json());
const image = (path, blob, patience) =>
  ask(path, { method: "POST", headers: { "Content-Type": blob.type.startsWith("image/") ? blob.type : "image/x-unknown" }, body: blob }, patience).then((r) => r.json());
const model = (path, file) =>
  ask(path, { method: "POST", headers: { "Content-Type": "application/octet-stream" }, body: file }, TRANSFER).then((r) => r.json());

export const api = {
  state: () => ask("/api/state").then((response) => response.json()),
  predict: (blob, patience) => image("/api/predict?top=8", blob, patience),
  learn: (label, blob, hold, group) =>
    image(`/api/learn?${new URLSearchParams({ label, hold: hold ? "1" : "0", group })}`, blob),
  makeClass: (label) => json("/api/classes", { label }),
  rename: (label, to) => json("/api/rename", { label, to }),
  forget: (label) => json("/api/forget", { label }),
  undo: () => json("/api/undo", {}),
  download: () => ask("/api/model", {}, TRANSFER).then((response) => response.blob()),
  load: (file) => model("/api/load", file),
  merge: (file) => model("/api/merge", file),
};

const LARGE = 2_000_000; // bytes; larger photographs are made smaller before they are sent
const SIDE = 1024;

// The file as it is, or a smaller version of a large photograph.
export async function sendable(file) {
  if (file.size <= LARGE) return file;
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    return file; // the server says what is wrong with it
  }
  const scale = Math.min(1, SIDE / Math.max(bitmap.width, bitmap.height));
  const canvas = new OffscreenCanvas(Math.max(1, bitmap.width * scale), Math.max(1, bitmap.height * scale));
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  return canvas.convertToBlob({ type: "image/jpeg", quality: 0.92 });
}
