import '@xterm/xterm/css/xterm.css';
import { FitAddon } from '@xterm/addon-fit';
import { Terminal } from '@xterm/xterm';
import { type RefObject, useEffect, useImperativeHandle, useRef } from 'react';
import { pastedText } from '../rules';
import classes from './Screen.module.css';

/** What the page does with a screen. */
export interface ScreenHandle {
  write: (bytes: Uint8Array) => void;
  /** Writes a line of the page's own, set off from the output. */
  note: (text: string) => void;
  focus: () => void;
}

interface Props {
  label: string;
  isReadAloud: boolean;
  onText: (text: string) => void;
  onBytes: (bytes: Uint8Array) => void;
  onSize: (rows: number, columns: number) => void;
  /** Is given pasted text of several lines instead of the shell. */
  onLongPaste: (text: string) => void;
  /** The person wants to leave the terminal by the keyboard, where Tab belongs to the shell (WCAG 2.1.2). */
  onLeave: () => void;
  ref: RefObject<ScreenHandle | null>;
}

const scrollback = 10_000;
const lineBreak = /[\r\n]./s;

/** A terminal emulator that fills its place. */
export function Screen({ label, isReadAloud, onText, onBytes, onSize, onLongPaste, onLeave, ref }: Props) {
  const place = useRef<HTMLDivElement>(null);
  const terminal = useRef<Terminal | null>(null);
  const handlers = useRef({ onText, onBytes, onSize, onLongPaste, onLeave });
  handlers.current = { onText, onBytes, onSize, onLongPaste, onLeave };

  useImperativeHandle(ref, () => ({
    write: (bytes) => terminal.current?.write(bytes),
    note: (text) => terminal.current?.write(`\r\n\x1b[2m— ${text} —\x1b[0m\r\n`),
    focus: () => terminal.current?.focus(),
  }));

  useEffect(() => {
    const element = place.current;
    if (element === null) return;
    const emulator = new Terminal({
      // The animation of a blinking cursor asks for frames all the time, and Chromium holds messages back from a key until
      // the next frame is drawn: an echo took 29 ms in the median instead of 7.
      cursorBlink: false,
      fontFamily: 'ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace',
      fontSize: 14,
      lineHeight: 1.15, // of 1 the underscores of some fonts are cut off
      scrollback,
      allowProposedApi: false,
    });
    const fit = new FitAddon();
    emulator.loadAddon(fit);
    emulator.open(element);
    terminal.current = emulator;
    emulator.attachCustomKeyEventHandler((event) => {
      if (event.type !== 'keydown' || event.key !== 'F6' || !event.ctrlKey) return true;
      handlers.current.onLeave();
      return false;
    });
    const paste = (event: ClipboardEvent) => {
      const text = pastedText(event.clipboardData?.getData('text/plain') ?? '');
      event.preventDefault();
      event.stopImmediatePropagation();
      if (lineBreak.test(text)) handlers.current.onLongPaste(text);
      else emulator.paste(text);
    };
    element.addEventListener('paste', paste, true);
    const subscriptions = [
      emulator.onData((text) => handlers.current.onText(text)),
      emulator.onBinary((text) => handlers.current.onBytes(Uint8Array.from(text, (letter) => letter.charCodeAt(0)))),
      emulator.onResize(({ rows, cols }) => handlers.current.onSize(rows, cols)),
    ];
    let frame = 0;
    const observer = new ResizeObserver(() => {
      cancelAnimationFrame(frame);
      frame = requestAnimationFrame(() => fit.fit());
    });
    observer.observe(element);
    fit.fit();
    handlers.current.onSize(emulator.rows, emulator.cols);
    emulator.focus();
    return () => {
      cancelAnimationFrame(frame);
      observer.disconnect();
      element.removeEventListener('paste', paste, true);
      for (const subscription of subscriptions) subscription.dispose();
      emulator.dispose();
      terminal.current = null;
    };
  }, []);

  useEffect(() => {
    const emulator = terminal.current;
    if (emulator === null) return;
    emulator.options.screenReaderMode = isReadAloud;
    emulator.textarea?.setAttribute('aria-label', label);
  }, [isReadAloud, label]);

  return <div ref={place} className={classes.screen} />;
}
