import { Group, Stack, Text } from '@mantine/core';
import { useTranslation } from 'react-i18next';
import { AnchorLink } from '../../../components/AnchorLink';
import { Card } from '../../../components/Card';
import { Query } from '../../../components/Query';
import { useDependencies } from '../work';
import classes from './DependencyTree.module.css';
import { SessionStatus } from './SessionStatus';

interface Node {
  session_id: string;
  session_name: string;
  status: string;
  depends_on: readonly Node[];
}

const deepest = 32;

function Branch({ node, depth }: { node: Node; depth: number }) {
  return (
    <li>
      <Group gap="xs">
        <AnchorLink to="/sessions/$id" params={{ id: node.session_id }}>
          {node.session_name}
        </AnchorLink>
        <SessionStatus status={node.status.slice(node.status.indexOf('.') + 1)} />
      </Group>
      {node.depends_on.length > 0 && depth < deepest && (
        <ul className={classes.branches}>
          {node.depends_on.map((below) => (
            <Branch key={below.session_id} node={below} depth={depth + 1} />
          ))}
        </ul>
      )}
    </li>
  );
}

/** What a session depends on, and what that depends on, each with its status. */
export function DependencyTree({ id }: { id: string }) {
  const { t } = useTranslation('sessionWork');
  return (
    <Card title={t('graph.title')}>
      <Query query={useDependencies(id)}>
        {(tree) => (
          <Stack gap="xs">
            <Text size="sm" c="dimmed">
              {t('graph.hint')}
            </Text>
            <ul className={classes.branches}>
              <Branch node={tree as Node} depth={0} />
            </ul>
          </Stack>
        )}
      </Query>
    </Card>
  );
}
export default DependencyTree;
