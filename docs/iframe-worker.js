// A page opened from file:// cannot start a Worker. The search script then runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.scope = frame.contentWindow;
      addEventListener("message", (event) => {
        if (event.source === this.scope) { this.dispatchEvent(new MessageEvent("message", { data: event.data })); }
      });
      this.ready = new Promise((resolve) => { this.scope.searchScriptLoaded = resolve; });
      this.scope.document.open();
      this.scope.document.write(`<body><script>
        postMessage = (data) => parent.postMessage(data, "*");
        importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise((resolve) => {
          document.body.append(Object.assign(document.createElement("script"), { src: url, onload: resolve }));
        })), Promise.resolve());
      <\/script><script src="${url}" onload="searchScriptLoaded()"><\/script></body>`);
      this.scope.document.close();
    }
    postMessage(data) {
      this.ready.then(() => this.scope.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() { this.scope.frameElement.remove(); }
  };
}
