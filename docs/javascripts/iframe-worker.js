// Search runs in a worker, which browsers refuse to pages that are opened from a disk: there, a hidden frame stands in for it.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.inside = frame.contentWindow
      // what the script sends goes to whoever listens here
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      this.ready = new Promise((resolve, reject) => {
        const script = this.inside.document.createElement("script")
        Object.assign(script, { src: new URL(url, location), onload: resolve, onerror: reject })
        this.inside.document.body.append(script)
      })
    }

    async postMessage(data) {
      await this.ready
      this.inside.dispatchEvent(new MessageEvent("message", { data }))
    }
  }
}
