// Opens the public Perfetto UI and hands it the trace, once the UI has answered that it listens.
'use strict';
const UI = 'https://ui.perfetto.dev';
const state = document.getElementById('state');

async function handOver() {
  const ui = window.open(UI);
  if (!ui) {
    state.textContent = 'The browser has blocked the new tab; allow it for this page.';
    return;
  }
  state.textContent = 'Reading the trace ...';
  const answer = await fetch('trace.pftrace.gz');
  if (!answer.ok) throw new Error(`the trace could not be read (${answer.status})`);
  const buffer = await answer.arrayBuffer();
  state.textContent = 'Waiting for the Perfetto UI ...';
  const asking = setInterval(() => ui.postMessage('PING', UI), 50);
  window.addEventListener('message', function handle(event) {
    if (event.origin !== UI || event.data !== 'PONG') return;
    clearInterval(asking);
    window.removeEventListener('message', handle);
    ui.postMessage({perfetto: {buffer, title: document.title}}, UI, [buffer]);
    state.textContent = 'The Perfetto UI has the trace.';
  });
}

document.getElementById('open').addEventListener('click', () => {
  handOver().catch((error) => {
    state.textContent = `That did not work: ${error.message}`;
  });
});
