import { cleanup, configure } from '@testing-library/react';
import i18next from 'i18next';
import { afterEach, beforeEach, vi } from 'vitest';
import { startI18n } from '../i18n';

/** An event source that never says anything. */
class SilentEventSource extends EventTarget {
  static readonly CLOSED = 2;
  readyState = 1;
  close(): void {
    this.readyState = SilentEventSource.CLOSED;
  }
}

// Pages are loaded when they are opened, which takes a while on a busy machine.
configure({ asyncUtilTimeout: 20_000 });

vi.stubGlobal('EventSource', SilentEventSource);
// A window of a browser has a size; that of the test environment has none, so that no row would be on screen.
Object.defineProperty(HTMLElement.prototype, 'offsetHeight', { configurable: true, get: () => 800 });
Object.defineProperty(HTMLElement.prototype, 'offsetWidth', { configurable: true, get: () => 1024 });
// Text areas that grow measure again once fonts are loaded; the test environment has none.
Object.defineProperty(document, 'fonts', { configurable: true, value: new EventTarget() });

beforeEach(async () => {
  if (!i18next.isInitialized) await startI18n(['en']);
});
afterEach(cleanup);
