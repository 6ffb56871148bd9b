import { delayBefore, readMessage, toBase64 } from './rules';

export type ConnectionState = 'connecting' | 'open' | 'waiting' | 'ended' | 'stopped';

interface Options {
  url: (rows: number, columns: number) => string;
  onOutput: (bytes: Uint8Array) => void;
  onError: (text: string) => void;
  onState: (state: ConnectionState) => void;
  /** Is asked before another attempt: false where none can succeed, so that the connection stops. */
  mayRetry: () => Promise<boolean>;
  open?: (url: string) => WebSocket;
}

const normalClosure = 1000;
const pingMs = 30_000;
const maxWaitingBytes = 65_536;

/**
 * A terminal's connection to its shell, which is opened again after it was lost.
 *
 * A shell lives as long as its connection: after a lost one there is another shell. What is typed while there is no
 * connection is dropped, since nobody sees where it would end up.
 */
export class TerminalConnection {
  private socket: WebSocket | null = null;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private pinger: ReturnType<typeof setInterval> | undefined;
  private attempt = 0;
  private rows = 24;
  private columns = 80;
  private current: ConnectionState = 'stopped';
  private readonly encoder = new TextEncoder();

  constructor(private readonly options: Options) {}

  get state(): ConnectionState {
    return this.current;
  }

  /** Connects now, also when another attempt was to come later. */
  start(): void {
    clearTimeout(this.timer);
    if (this.socket !== null) return;
    this.become('connecting');
    const { open = (url: string) => new WebSocket(url) } = this.options;
    const socket = open(this.options.url(this.rows, this.columns));
    this.socket = socket;
    socket.onopen = () => {
      this.attempt = 0;
      this.become('open');
      this.sendSize();
      this.pinger = setInterval(() => this.send({ type: 'ping' }), pingMs);
    };
    socket.onmessage = (event: MessageEvent<unknown>) => {
      const message = readMessage(event.data);
      if (message?.kind === 'output') this.options.onOutput(message.bytes);
      else if (message?.kind === 'error') this.options.onError(message.text);
    };
    socket.onclose = (event) => {
      if (this.socket !== socket) return;
      this.socket = null;
      clearInterval(this.pinger);
      if (event.code === normalClosure) this.become('ended');
      else void this.wait();
    };
  }

  /** Closes the connection for good; the shell ends. */
  stop(): void {
    clearTimeout(this.timer);
    clearInterval(this.pinger);
    const socket = this.socket;
    this.socket = null;
    socket?.close();
    this.current = 'stopped';
  }

  /** Types text into the shell. */
  type(text: string): void {
    this.typeBytes(this.encoder.encode(text));
  }

  typeBytes(bytes: Uint8Array): void {
    if (this.current !== 'open') return;
    for (let start = 0; start < bytes.length; start += maxWaitingBytes) {
      this.send({ type: 'stdin', chars: toBase64(bytes.subarray(start, start + maxWaitingBytes)) });
    }
  }

  resize(rows: number, columns: number): void {
    if (rows === this.rows && columns === this.columns) return;
    this.rows = rows;
    this.columns = columns;
    this.sendSize();
  }

  private sendSize(): void {
    this.send({ type: 'resize', rows: this.rows, cols: this.columns });
  }

  private send(message: object): void {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(message));
  }

  private async wait(): Promise<void> {
    this.become('waiting');
    const mayRetry = await this.options.mayRetry();
    if (this.current !== 'waiting') return;
    if (!mayRetry) {
      this.become('stopped');
      return;
    }
    this.timer = setTimeout(() => this.start(), delayBefore(this.attempt));
    this.attempt += 1;
  }

  private become(state: ConnectionState): void {
    if (this.current === state) return;
    this.current = state;
    this.options.onState(state);
  }
}
