// Stores every file of the page on the device, and serves them from there: after the first visit no network is needed.
// A new version waits until the learner reloads, so that files of two versions never mix.

const VERSION = "trainer @VERSION@";
const FILES = @FILES@;

self.addEventListener("install", (event) => {
  const fresh = FILES.map((file) => new Request(file, { cache: "reload" }));
  event.waitUntil(caches.open(VERSION).then((cache) => cache.addAll(fresh)));
});

self.addEventListener("activate", (event) => {
  const old = (names) => names.filter((name) => name.startsWith("trainer ") && name !== VERSION);
  const clear = caches.keys().then((names) => Promise.all(old(names).map((name) => caches.delete(name))));
  event.waitUntil(clear.then(() => self.clients.claim()));
});

self.addEventListener("message", (event) => {
  if (event.data === "take over") self.skipWaiting();
});

self.addEventListener("fetch", (event) => {
  const url = new URL(event.request.url);
  if (event.request.method !== "GET" || !url.href.startsWith(self.registration.scope)) return;
  const name = event.request.mode === "navigate" ? "index.html" : url.pathname;
  const stored = caches.open(VERSION).then((cache) => cache.match(name, { ignoreVary: true }));
  event.respondWith(stored.then((found) => found ?? fetch(event.request)));
});
