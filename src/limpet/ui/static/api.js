// Requests to our own server. The token is kept for this tab only, and sent as a header: no cookie, nothing in a URL.

const KEY = "limpet-ui-token";

export const token = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function headers(more) {
  const sent = token.get();
  return { ...(sent ? { authorization: `Bearer ${sent}` } : {}), ...more };
}

async function failure(response) {
  let said = `the server answered ${response.status}`;
  try {
    said = (await response.json()).error.message;
  } catch {
    // it is no answer of ours: the status is all there is
  }
  return new ApiError(response.status, said);
}

async function ask(path, options) {
  let response;
  try {
    response = await fetch(`/ui/api/${path}`, { cache: "no-store", ...options });
  } catch {
    throw new ApiError(0, "the server does not answer");
  }
  if (!response.ok) throw await failure(response);
  return response;
}

const at = (parts) => parts.map(encodeURIComponent).join("/");

export const get = async (...parts) => (await ask(at(parts), { headers: headers() })).json();

export async function post(parts, body = {}, action = "") {
  const sent = headers({ "content-type": "application/json", "x-limpet-ui": "1", "x-limpet-action": encodeURIComponent(action).slice(0, 300) });
  return (await ask(at(parts), { method: "POST", headers: sent, body: JSON.stringify(body) })).json();
}

/** Server-sent events by fetch, which can send the token. Calls `told` for each overview; returns when it ends. */
export async function listen(told, signal) {
  const response = await ask("events", { headers: headers(), signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const events = text.split("\n\n");
    text = events.pop();
    for (const event of events) {
      const data = event.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
      if (data) told(JSON.parse(data));
    }
  }
}
