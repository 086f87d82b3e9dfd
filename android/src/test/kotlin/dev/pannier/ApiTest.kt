package dev.pannier

import java.io.File
import java.lang.reflect.Constructor
import java.lang.reflect.Executable
import java.lang.reflect.Field
import java.lang.reflect.Method
import java.lang.reflect.Modifier
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Test

/**
 * The public surface, as the JVM sees it, is a file under review: `android/api/pannier.api`. After a change that is meant,
 * run the tests with `-Dpannier.api.update=true` and review the difference.
 */
class ApiTest {
    @Test
    fun `the public surface is the reviewed one`() {
        val dump = dump()
        val file = File(System.getProperty("pannier.api"))
        if (System.getProperty("pannier.api.update") == "true") {
            file.parentFile.mkdirs()
            file.writeText(dump)
        }
        assertEquals(file.readText(), dump)
    }

    @Test
    fun `no generated type is part of it`() {
        assertEquals(emptyList<String>(), dump().lines().filter { "dev.pannier.ffi" in it })
    }

    private fun dump(): String {
        val root = File(Pannier::class.java.protectionDomain.codeSource.location.toURI())
        val classes = File(root, "dev/pannier").listFiles().orEmpty()
            .filter { it.name.endsWith(".class") }
            .map { Class.forName("dev.pannier." + it.name.removeSuffix(".class")) }
            .filter { visible(it) }
            .sortedBy { it.name }
        return classes.joinToString("\n") { c ->
            val members = (c.declaredFields.toList<java.lang.reflect.Member>() + c.declaredMethods + c.declaredConstructors)
                .filter { Modifier.isPublic(it.modifiers) || Modifier.isProtected(it.modifiers) }
                .filter { !it.isSynthetic && !it.name.contains('$') && !generated(it) }
                .map { "    " + describe(it) }
                .sorted()
            (listOf(head(c)) + members).joinToString("\n", postfix = "\n")
        }
    }

    private fun visible(c: Class<*>): Boolean =
        Modifier.isPublic(c.modifiers) && !c.isSynthetic && !c.isAnonymousClass && !c.simpleName.endsWith("Kt") &&
            (c.enclosingClass == null || visible(c.enclosingClass))

    private fun generated(member: java.lang.reflect.Member): Boolean = when (member) {
        is Executable -> member.parameterTypes.any { it.name.startsWith("dev.pannier.ffi") }
        is Field -> member.type.name.startsWith("dev.pannier.ffi")
        else -> false
    }

    private fun head(c: Class<*>): String {
        val kind = if (c.isInterface) "interface" else if (c.isEnum) "enum" else "class"
        val parents = (listOfNotNull(c.superclass) + c.interfaces).filter { it != Any::class.java }.map { it.name }
        val flags = Modifier.toString(c.modifiers and (Modifier.ABSTRACT or Modifier.FINAL))
        return "$flags $kind ${c.name}".trim() + if (parents.isEmpty()) "" else " : " + parents.joinToString()
    }

    private fun describe(member: java.lang.reflect.Member): String {
        val static = if (Modifier.isStatic(member.modifiers)) "static " else ""
        return when (member) {
            is Method -> "$static${member.name}(${types(member)}): ${member.genericReturnType.typeName}"
            is Constructor<*> -> "constructor(${types(member)})"
            is Field -> "$static${member.name}: ${member.genericType.typeName}"
            else -> member.toString()
        }
    }

    private fun types(e: Executable): String = e.genericParameterTypes.joinToString { it.typeName }
}
