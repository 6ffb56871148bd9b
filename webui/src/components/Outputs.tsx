import { Stack, Text } from '@mantine/core';
import { useMemo } from 'react';
import { useTranslation } from 'react-i18next';
import { readNonce } from '../api/nonce';
import { withoutEscapes } from '../api/text';
import classes from './Outputs.module.css';
import { type Output, plainHtml } from './outputs';

const frameStyle =
  'body{margin:.5rem;font:14px/1.4 system-ui,sans-serif;color:#111;background:#fff}' +
  'table{border-collapse:collapse}th,td{padding:.2rem .5rem;border:1px solid #ccc;text-align:right}' +
  'pre{white-space:pre-wrap}img{max-width:100%}';
const lineHeight = 30;

/** Shows HTML of a program in a frame with an origin of its own, in which no script runs. */
export function HtmlFrame({ html }: { html: string }) {
  const { t } = useTranslation('components');
  const plain = useMemo(() => plainHtml(html), [html]);
  const lines = plain.html.match(/<(tr|p|li|br|h\d|div|hr|img)\b/g)?.length ?? 1;
  return (
    <>
      <iframe
        className={classes.frame}
        title={t('outputs.html')}
        sandbox=""
        referrerPolicy="no-referrer"
        height={Math.min(480, (lines + 1) * lineHeight + 20)}
        srcDoc={`<!doctype html><meta charset="utf-8"><title>${t('outputs.html')}</title><style nonce="${readNonce()}">${frameStyle}</style><body>${plain.html}`}
      />
      {plain.hadScripts && (
        <Text size="sm" c="dimmed">
          {t('outputs.noScripts')}
        </Text>
      )}
    </>
  );
}

/** Shows what a program has printed and drawn. All of it is foreign: nothing of it becomes part of the page. */
export function Outputs({ outputs }: { outputs: readonly Output[] }) {
  const { t } = useTranslation('components');
  return (
    <Stack gap="xs">
      {outputs.map((output, index) => {
        const key = `${index}-${output.kind}`; // pieces are only added at the end
        if (output.kind === 'image') {
          return (
            <img key={key} className={classes.image} src={output.url} alt={t('outputs.image', { number: index + 1 })} />
          );
        }
        if (output.kind === 'html') return <HtmlFrame key={key} html={output.html} />;
        return (
          <pre
            key={key}
            className={classes.text}
            data-stream={output.stream}
            // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reached by the keyboard
            tabIndex={0}
          >
            {withoutEscapes(output.text)}
          </pre>
        );
      })}
    </Stack>
  );
}
